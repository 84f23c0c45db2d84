"""Where the command line begins: until it can say that it was interrupted, an interrupt ends it without a traceback."""

import signal


def main() -> int:
    """Run the command line and return its exit code; while it is imported, Ctrl-C ends the process without a traceback.
    SIGINT is changed only if it has Python's default handler, which is restored before the command runs.
    """
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background of a script
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from symconfig.cli.main import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
