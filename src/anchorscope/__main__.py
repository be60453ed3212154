"""Run the command line as `python -m anchorscope`."""

from anchorscope.cli import main

if __name__ == "__main__":
    main()
