"""What the programs of this directory in Python share."""


def check(got, wanted, what):
    print("ok" if got == wanted else "not ok", "-", what)
    if got != wanted:
        print(f"# got {got!r}, wanted {wanted!r}")
