"""``python -m spyrec`` is the command line."""

from spyrec.cli import main

if __name__ == "__main__":
    main()
