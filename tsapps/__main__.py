"""``python -m tsapps`` and the installed ``tsapps``: signal handlers first, then the command line."""

from tsapps import signals


def main() -> None:
    """Run the command line."""
    signals.install()
    import io  # nothing stands before the handlers
    import sys

    try:
        from tsapps.cli import app

        if isinstance(sys.stdout, io.TextIOWrapper):
            # A file's name may hold what the terminal's encoding does not.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            app(prog_name="tsapps")
        except SystemExit as ended:
            signals.end(ended.code if isinstance(ended.code, int) else 0)
            raise
    finally:
        signals.finish()


if __name__ == "__main__":
    main()
