import sys


def main() -> int:
    try:
        from dyno.cli.main import main as run  # takes a moment, in which Ctrl-C is no traceback either
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
