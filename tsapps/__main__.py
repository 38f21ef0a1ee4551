"""Entry point of ``python -m tsapps`` and of the installed command ``tsapps``.

Signal handlers are installed before the command line is imported, so that Ctrl-C never prints a traceback.
"""

from tsapps import signals


def main() -> None:
    """Install the signal handlers and run the command line."""
    signals.install()
    from tsapps import streams  # imported only after the signal handlers are installed

    try:
        streams.prepare()
        from tsapps.cli import app

        try:
            app(prog_name="tsapps")
        except SystemExit as ended:
            signals.end(ended.code if isinstance(ended.code, int) else 0)
            raise
    finally:
        signals.finish()


if __name__ == "__main__":
    main()
