"""python -m hyla_lm is the command hyla-lm."""

from hyla_lm.cli import entry_point

if __name__ == "__main__":
    entry_point()
