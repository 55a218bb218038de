"""The four commands: arguments, help, exit codes and errors for a reader. What they do is in other rooms."""
