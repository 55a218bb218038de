from clickexp.cli.main import main

main()
