"""Help of the commands: options in groups, examples, and lines as wide as the terminal."""

from typing import Any

from typer.core import TyperCommand

__all__ = ["COMPUTATION", "CONTEXT_SETTINGS", "DATA", "EXAMPLES", "OUTPUT", "Command"]

# Groups of options, as `rich_help_panel` of an option names them.
DATA, COMPUTATION, OUTPUT = "Reading of DATA", "Computation", "Output"
_ARGUMENTS, _OTHERS = "Arguments", "Options"
_ORDER = (_ARGUMENTS, _OTHERS, DATA, COMPUTATION, OUTPUT)
# Wider lines are hard to read.
_WIDTH = 120
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH}

# Examples of each command, which the tests run one after the other where points.npy and customers.csv are.
EXAMPLES = {
    "kmeans": (
        "tsapps kmeans points.npy -k 16",
        "tsapps kmeans points.npy -k 2:20 --seed 7 -o chosen",
        "tsapps kmeans customers.csv -k 4 --id customer --scale standard --missing drop --labels segments.csv",
    ),
    "predict": (
        "tsapps predict points-kmeans more.npy",
        "tsapps predict customers-kmeans customers.csv --labels nearest.parquet --distances",
    ),
    "report": ("tsapps report customers-kmeans",),
    "protect": ("tsapps protect checkpoints/", "tsapps protect checkpoints/ --parity 1/8 --update"),
    "verify": ("tsapps verify checkpoints/", "tsapps verify checkpoints/ --json"),
    "repair": ("tsapps repair checkpoints/",),
    "abft-encode": ("tsapps abft-encode points.npy",),
    "abft-verify": ("tsapps abft-verify points.npy",),
    "abft-inject": ("tsapps abft-inject points.npy --fault bit --count 2 --out damaged.npy",),
    "abft-correct": ("tsapps abft-correct damaged.npy --sidecar points.npy.abft --in-place",),
    "abft-calibrate": ("tsapps abft-calibrate --dtype float32 --device cpu",),
    "sample": ("tsapps sample --list", "tsapps sample china china.npy"),
    "info": ("tsapps info",),
    "tune": ("tsapps tune --dry-run",),
    "compile": ("tsapps compile --shape 1000000,64,16 --gpu H100",),
}


class Command(TyperCommand):
    """A command whose help has its options in groups, then examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in _ORDER}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                others = _ARGUMENTS if parameter.param_type_name == "argument" else _OTHERS
                groups[getattr(parameter, "rich_help_panel", None) or others].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        """Write the examples, each on a line of its own."""
        examples = EXAMPLES.get(self.name or "", ())
        if examples:
            with formatter.section("Example" if len(examples) == 1 else "Examples"):
                formatter.write("".join(f"  {example}\n" for example in examples))
