"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["package_version"]


def package_version() -> str:
    """Return the version of the installed package; "not installed" if it is used from its sources."""
    try:
        return version("tsapps")
    except PackageNotFoundError:
        return "not installed"
