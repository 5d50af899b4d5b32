"""`python -m stepscope` is the command `stepscope`."""

from stepscope.commands.main import main

if __name__ == "__main__":
    main()
