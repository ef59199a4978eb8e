"""`python -m tugline`: the same as the `tugline` script, for environments in which it is not on the PATH."""

from tugline.cli.main import entry

if __name__ == "__main__":
    entry()
