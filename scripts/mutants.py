"""Puts faults into the code, one line each, and says which tier of the tests finds them.

    python scripts/mutants.py                      80 mutants, ten of each area; about two hours on 2 cores
    python scripts/mutants.py --areas metrics parameters --count 3
    python scripts/mutants.py --output outputs/mutants.jsonl      continues what an earlier call has begun

The mutants are drawn with a fixed seed from all places where an operator, a number, a condition, a
branch or a statement can be changed. Each meets the tests of its area until one fails, first of the
default tier, then of the nightly one. Tests of other areas may still find a survivor, so that the
table is no better than the truth.
"""

import argparse
import ast
import collections
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[1]
_NO_END = "did not end"
"""Said of a mutant with which a test exceeds the time limit of pyproject.toml: it is found."""


@dataclasses.dataclass(frozen=True)
class Area:
    """Files that are mutated, and the folders whose tests answer for them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "models and numerics": Area(
        ("models/**/*.py", "numerics.py"), ("tests/models", "tests/test_numerics.py")
    ),
    "parameters": Area(
        ("parameters/**/*.py",), ("tests/parameters", "tests/models", "tests/training")
    ),
    "training step and priors": Area(
        (
            "training/step.py",
            "training/trainer.py",
            "training/optimizers.py",
            "training/sparse/*.py",
            "training/em/*.py",
        ),
        ("tests/training", "tests/parameters", "tests/experiment"),
    ),
    "posteriors and intervals": Area(
        ("posteriors/*.py",),
        ("tests/posteriors", "tests/training", "tests/export", "tests/parameters"),
    ),
    "metrics": Area(
        ("metrics/**/*.py", "evaluation/*.py"),
        ("tests/metrics", "tests/evaluation", "tests/results"),
    ),
    "readers and packing": Area(("data/**/*.py",), ("tests/data", "tests/experiment", "tests/cli")),
    "resume and sweeps": Area(
        (
            "training/loop.py",
            "training/checkpoint.py",
            "training/stopping.py",
            "sweeps/**/*.py",
            "runs/*.py",
        ),
        (
            "tests/sweeps",
            "tests/runs",
            "tests/training",
            "tests/experiment",
            "tests/cli",
            "tests/results",
        ),
    ),
    "export and comparison": Area(
        ("export/*.py", "results/**/*.py"),
        ("tests/export", "tests/results", "tests/cli", "tests/examples", "tests/docs"),
    ),
}

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One line of a file, and what takes its place."""

    area: str
    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before.strip()} -> {self.after.strip()}"


def replacements(
    node: ast.expr | ast.stmt, text: str
) -> Iterator[tuple[int | None, int | None, str]]:
    """Start, end and new text of each change of a node that stands on one line."""
    start, end = node.col_offset, node.end_col_offset
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in COMPARISONS
        ):
            yield left.end_col_offset, right.col_offset, f" {COMPARISONS[type(operator)]} "
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            between = text[left.end_col_offset : right.col_offset]
            if between.count("(") == between.count(")") == 0:
                yield left.end_col_offset, right.col_offset, f" {ARITHMETIC[type(operator)]} "
        case ast.BoolOp(op=operator, values=[left, right]):
            between = text[left.end_col_offset : right.col_offset]
            word, other = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
            yield left.end_col_offset, right.col_offset, between.replace(word, other)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield start, operand.col_offset, ""
        case ast.Constant(value=bool() as value):
            yield start, end, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield start, end, str(value + 1)
        case ast.IfExp(test=condition) | ast.If(test=condition) if (
            condition.end_lineno == node.lineno
        ):
            start, end = condition.col_offset, condition.end_col_offset
            yield start, end, f"not ({text[start:end]})"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield start, end, "pass"


def unchanged(tree: ast.AST) -> set[int]:
    """Nodes that are left alone: annotations, decorators, errors' texts, and what only type checkers read."""
    left = set()
    for node in ast.walk(tree):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            parts.append(node)
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node)  # of zip, a check of the code itself
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            parts.append(node)
        for part in filter(None, parts):
            left |= {id(inner) for inner in ast.walk(part)}
    return left


def mutants_of(area: str, file: Path) -> Iterator[Mutant]:
    """Every mutant of a file that is valid Python."""
    source = file.read_text()
    lines, tree = source.splitlines(), ast.parse(source)
    left = unchanged(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr | ast.stmt) or id(node) in left:
            continue
        line = node.lineno
        if not lines[line - 1].isascii():
            continue
        if node.end_lineno != line and not isinstance(node, ast.If):
            continue
        text = lines[line - 1]
        for start, end, new in replacements(node, text):
            after = text[:start] + new + text[end:]
            changed = "\n".join([*lines[: line - 1], after, *lines[line:]])
            if after != text and _compiles(changed):
                yield Mutant(area, str(file.relative_to(ROOT)), line, text, after)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def drawn(area: str, count: int) -> list[Mutant]:
    """So many mutants of an area, on different lines."""
    files = sorted({file for glob in AREAS[area].files for file in (ROOT / "clickexp").glob(glob)})
    lines: dict[tuple[str, int], list[Mutant]] = collections.defaultdict(list)
    for file in files:
        for mutant in mutants_of(area, file):
            lines[mutant.file, mutant.line].append(mutant)
    chance = random.Random(f"{area} 1")
    return [chance.choice(lines[key]) for key in chance.sample(sorted(lines), count)]


def copy_of_the_project(folder: Path) -> Path:
    """What git tracks."""
    command = ["git", "ls-files", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "outputs").mkdir(exist_ok=True)
    return folder


def ordered_tests(mutant: Mutant, project: Path) -> list[str]:
    """Files with tests of the mutant's area: those that share a word with its path come first."""
    files = []
    for place in AREAS[mutant.area].tests:
        path = project / place
        files += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    words = [
        word for word in re.split(r"[/._]", mutant.file) if word not in ("clickexp", "py", "base")
    ]
    words = [word.removesuffix("s") for word in words]
    files.sort(
        key=lambda file: (
            -sum((2 if word in file.stem else 1) for word in words if word in str(file))
        )
    )
    return [str(file.relative_to(project)) for file in files]


def fails(project: Path, tests: list[str], *options: str) -> str | None:
    """The first test that fails; None if all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        *options,
        *tests,
    ]
    # the copy's package comes before the installed one, in the commands that tests start, too
    env = {**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{project / 'clickexp/plugins'}"}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
    if done.returncode in (0, 5):  # passed, or no tests in this tier
        return None
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if not failed and "Timeout (" in done.stderr:
        return _NO_END
    if not failed:
        raise RuntimeError(
            f"pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return failed[0]


def tried(mutant: Mutant, project: Path) -> dict[str, str | None]:
    """The test of each tier that finds the mutant; the nightly tier is asked where the default one does not."""
    default = found(mutant, project)
    nightly = None if default else found(mutant, project, "--all", "-m", "nightly")
    return {"default": default, "nightly": nightly}


def found(mutant: Mutant, project: Path, *options: str) -> str | None:
    """The first test of a tier that fails with the mutant and passes without it."""
    file, tests, left_out = project / mutant.file, ordered_tests(mutant, project), []
    original = file.read_text()
    lines = original.splitlines()
    lines[mutant.line - 1] = mutant.after
    while True:
        file.write_text("\n".join(lines) + "\n")
        try:
            test = fails(project, tests, *options, *left_out)
        finally:
            file.write_text(original)
        if test is None or test == _NO_END or fails(project, [test], *options) is None:
            return test
        left_out += ["--deselect", test]


def table(results: list[dict]) -> str:
    """How many mutants of each area each tier finds, then each mutant, as Markdown."""
    counts = ["| area | mutants | default tier | both tiers |", "|---|---:|---:|---:|"]
    for area in AREAS:
        of_area = [result for result in results if result["area"] == area]
        default = sum(bool(result["default"]) for result in of_area)
        both = sum(bool(result["default"] or result["nightly"]) for result in of_area)
        counts.append(f"| {area} | {len(of_area)} | {default} | {both} |")
    default = sum(bool(result["default"]) for result in results)
    both = sum(bool(result["default"] or result["nightly"]) for result in results)
    counts.append(f"| all | {len(results)} | {default} | {both} |")
    each = ["| mutant | found by |", "|---|---|"]
    for result in results:
        nightly = result["nightly"] and f"{result['nightly']} (nightly)"
        found = result["default"] or nightly or "**no test**"
        each.append(f"| `{result['mutant'].replace('|', chr(92) + '|')}` | {found} |")
    return "\n".join([*counts, "", *each])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--areas",
        nargs="+",
        choices=AREAS,
        default=list(AREAS),
        metavar="AREA",
        help="default: all",
    )
    parser.add_argument("--count", type=int, default=10, help="mutants of each area")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="mutants that are tried side by side"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "outputs/mutants.jsonl", help="a line per mutant"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    options = parser.parse_args()
    mutants = [mutant for area in options.areas for mutant in drawn(area, options.count)]
    if options.list:
        print(*mutants, sep="\n")
        return
    options.output.parent.mkdir(parents=True, exist_ok=True)
    lines = options.output.read_text().splitlines() if options.output.exists() else []
    results = {result["mutant"]: result for result in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.processes):
            (Path(folder) / str(number)).mkdir()
            copies.put(copy_of_the_project(Path(folder) / str(number)))

        def run(mutant: Mutant) -> None:
            if str(mutant) in results:
                return
            project = copies.get()
            try:
                found = tried(mutant, project)
            finally:
                copies.put(project)
            results[str(mutant)] = {"area": mutant.area, "mutant": str(mutant), **found}
            with options.output.open("a") as file:
                file.write(json.dumps(results[str(mutant)]) + "\n")
            print(
                f"{len(results)}/{len(mutants)} {mutant}\n    {found['default'] or found['nightly'] or 'SURVIVED'}",
                flush=True,
            )

        with ThreadPoolExecutor(options.processes) as pool:
            list(pool.map(run, mutants))
    print(table([results[str(mutant)] for mutant in mutants]))


if __name__ == "__main__":
    main()
