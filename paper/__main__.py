"""`python -m paper`: its commands, in a process where Ctrl-C is a line from the first import on."""

from repopt.cli import own_the_process

if __name__ == "__main__":
    own_the_process()
    from paper.commands import main

    main()
