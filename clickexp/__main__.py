from clickexp.main import main

main()
