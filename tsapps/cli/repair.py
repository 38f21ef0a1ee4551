"""``tsapps repair``: restore protected files bit by bit."""

import time

from tsapps.cli.options import Quiet
from tsapps.cli.protected_files import Jobs, JsonLines, Paths, Sidecars, counting, end, print_reports
from tsapps.cli.verbose import Verbose, show_logs

__all__ = ["repair"]


def repair(
    paths: Paths,
    sidecars: Sidecars = None,
    jobs: Jobs = None,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Restore files that tsapps protect has protected to their original bytes, and damaged sidecars and manifests.

    A sidecar restores any two corrupted words of 32 bits in each block of 512, which includes two pages of every 8 MiB.
    Parity restores what is more than that, and missing files. A restored file has the hash of the original: it is
    written beside the damaged one, checked, and only then renamed. If the damaged file was written to after it was
    protected, it is kept as FILE.damaged.

    Exits with 3 if anything was corrupted: its line says whether it was repaired.
    """
    show_logs(verbose)
    began = time.perf_counter()

    from tsapps.apps.abft.files.repair import repair_files

    with counting("repairing", paths, quiet=quiet) as progress:
        reports = repair_files(paths, sidecars=sidecars, workers=jobs, progress=progress)
        states, n_bytes = print_reports(reports, as_json=as_json, quiet=quiet)
    end(states, n_bytes, began, as_json=as_json, quiet=quiet)
