"""`python -m partita` is `partita`."""

from .cli import main

if __name__ == "__main__":
    main()
