import sys


def main() -> int:
    try:
        from dyno.cli.main import main as run  # importing takes a moment: Ctrl-C must not show a traceback then either
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
