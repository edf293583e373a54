import sys


def main() -> int:
    try:
        # importing takes a moment: Ctrl-C must not show a traceback then either
        from dyno.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
