"""``tsapps verify``: compare protected files with their manifests."""

import time

from tsapps.cli.options import Quiet
from tsapps.cli.protected_files import Jobs, JsonLines, Paths, Sidecars, counting, end, print_reports
from tsapps.cli.verbose import Verbose, show_logs

__all__ = ["verify"]


def verify(
    paths: Paths,
    sidecars: Sidecars = None,
    jobs: Jobs = None,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Verify every byte of files that tsapps protect has protected, and their sidecars and manifests; writes nothing.

    Prints a line for each file. That of a corrupted file says in which tensors the corruption is, and whether tsapps
    repair can restore it, which was tried. Exits with 3 if anything is corrupted or missing, and else with 1 if a file
    cannot be read.
    """
    show_logs(verbose)
    began = time.perf_counter()

    from tsapps.apps.abft.files.verify import verify_files

    with counting("verifying", paths, quiet=quiet) as progress:
        reports = verify_files(paths, sidecars=sidecars, workers=jobs, progress=progress)
        states, n_bytes = print_reports(reports, as_json=as_json, quiet=quiet)
    end(states, n_bytes, began, as_json=as_json, quiet=quiet)
