"""`python -m tidec` is the command `tidec`."""
import sys

from tidec.cli import main

if __name__ == "__main__":
    sys.exit(main())
