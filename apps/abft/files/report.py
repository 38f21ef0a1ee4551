"""What is said of each file, sidecar and manifest."""

from dataclasses import dataclass

__all__ = ["BAD", "FileReport"]

#: The states that mean corruption: exit code 3. All but "repaired" also mean that something is not as it should be now.
BAD = ("changed", "corrupt", "lost", "missing", "repaired")


@dataclass(frozen=True)
class FileReport:
    """The state of a file, a sidecar or a manifest.

    Attributes
    ----------
    path : str
    kind : {"file", "parity", "sidecar", "manifest", "directory"}
    state : str
        protect: "protected", "unchanged" (since it was protected), "changed" (since then; nothing was written),
        "missing", "forgotten". verify: "ok", "corrupt" (repairable), "lost" (corrupt and not repairable), "missing"
        (repairable by parity), "unprotected". repair: "ok", "repaired", "lost", "unprotected". All: "failed" (could not
        be read or written), "skipped" (a directory of sidecars of another one).
    message : str
        What is wrong, and what to do; empty if nothing is wrong.
    n_bytes : int
    words : int
        Number of corrupted words of 32 bits that the sidecar restores.
    tensors : tuple of str
        Names of the tensors with corruption.
    """

    path: str
    kind: str
    state: str
    message: str = ""
    n_bytes: int = 0
    words: int = 0
    tensors: tuple[str, ...] = ()
