"""Reads tests that are Python: what they take from the program, and whether they can run in a process without it.

Most tests call functions of the program and compare what they return. They run in a process of their own
(`judge.py`). What does not fit into that runs in the program's process, and is marked as forgeable.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from openrlhf_ada.reward.grade import UnusableLabelError

_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_STUDENT_MODULE = "solution"
"""`from solution import f`: how tests in the style of pytest name the program."""

_IN_ONE_PROCESS = {
    *("open", "input", "exec", "eval", "globals", "locals", "__import__", "issubclass"),
    *("stdin", "stdout", "stderr", "redirect_stdout", "redirect_stderr", "capsys", "capfd", "monkeypatch", "patch"),
    *("inspect", "mock", "os", "io", "pathlib", "tempfile", "shutil", "subprocess", "importlib", "gc", "weakref"),
}
"""Names that tests use where they look at more than what a function returns: its output, its files, its source."""

_PYTEST = re.compile(r"pytest\.(?:raises|approx|fail|mark|mark\.parametrize)")
"""What there is of it (`inside/pytest_names.py`), whether it is installed or not."""
_MAIN = re.compile(r"^(?:unittest|pytest)\.main\(.*\)\s*$", re.MULTILINE)

_IMPORTS = ast.Import | ast.ImportFrom
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | _IMPORTS | ast.Assign | ast.AnnAssign


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests in Python.

    `parts`: what is run, one after the other in the same names. `given`: code of the label that runs before. `remote`:
    names that the program defines. `imports`: import statements of the tests. `has_operators`: objects of classes of
    the program may decide what `==` says. `reads_arguments`: an assert looks at what an earlier call has made of its
    arguments. `in_one_process`: why the tests must run in the program's process, or empty. `forgeable`: the score
    rests on what the program says of itself.
    """

    parts: list[str]
    given: list[str]
    remote: list[str]
    imports: str
    has_operators: bool
    reads_arguments: bool
    in_one_process: str
    forgeable: bool

    @property
    def source(self) -> str:
        return "\n".join(self.parts)


def read_asserts(
    tests: Any, *, setup: Sequence[str], entry_point: Any = None, prompt: Any = None, imports: Sequence[str] = ()
) -> Asserts:
    """`setup`: code to run before the tests. `prompt`: of HumanEval, with the signature and helpers. `imports`:
    modules that programs may import. Raises UnusableLabelError."""
    entry = _entry(entry_point)
    parts = _parts([*setup, *(_MAIN.sub("", text) for text in texts(tests, "'tests'"))])
    if entry:
        parts = ["\n".join([*parts, f"check({entry_point})"])]
    trees = [_parsed(part) for part in parts]
    steps = [step for tree in trees for step in tree.body]
    functions = _test_functions(steps)
    _check_steps(steps, entry, has_functions=bool(functions))
    if functions:
        parts = ["\n".join([*parts, functions[0]]), *functions[1:]]
    given = _given(prompt, entry)
    taken, imported = _imported_names(steps)
    _check_imports(steps, imports)
    if taken or any(map(_is_of_program, steps)):
        parts = [_without_imports(part) for part in parts]
    free = _free_names(parts)
    modules = _modules(trees, free)
    helpers = {name for code in given for name in _names_of(code)} - {entry}
    remote = sorted((taken | free | ({entry} if entry else set())) - helpers - modules)
    if not remote:
        # Functions of the program with the names of built-in ones, such as `sum`.
        calls = [node.func for node in _walk(trees) if isinstance(node, ast.Call)]
        remote = sorted({func.id for func in calls if isinstance(func, ast.Name)} & _BUILTINS)
    if not remote:
        raise UnusableLabelError("the tests use no name of the program, so that every program would pass")
    if modules:
        parts = [f"import {', '.join(sorted(modules))}\n{parts[0]}", *parts[1:]]
    return Asserts(
        parts=parts,
        given=given,
        remote=remote,
        imports=imported,
        has_operators=any(name[0].isupper() and name != "Solution" for name in remote),
        reads_arguments=_reads_arguments(steps),
        in_one_process=_reason_for_one_process(steps, remote, imports),
        forgeable=_trusts_the_program(steps, remote, entry),
    )


def texts(value: Any, what: str) -> list[str]:
    """Of text or a list of texts; raises UnusableLabelError."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UnusableLabelError(f"{what} must be text or a list of texts")
    return found


def _entry(entry_point: Any) -> str:
    """The name in it: "add" of "Solution().add"; empty for None."""
    if entry_point is None or entry_point == "":
        return ""
    match = re.fullmatch(r"([^\W\d]\w*)(?:\(\))?(?:\.\w+)*", entry_point) if isinstance(entry_point, str) else None
    if match is None:
        raise UnusableLabelError(f"entry_point is {repr(entry_point)[:80]}, expected the name of a function")
    return match[1]


def _parsed(source: str) -> ast.Module:
    try:
        tree = ast.parse(source)
        compile(tree, "<tests>", "exec", dont_inherit=True)
        return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnusableLabelError(f"the tests are not Python: {str(error)[:200]}") from error


def _parts(texts: list[str]) -> list[str]:
    """One without an assert belongs to the next. All as one where they are Python together only, such as lines."""
    parts: list[str] = []
    waiting: list[str] = []
    for text in texts:
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):
            return ["\n".join(texts)]
        waiting.append(text)
        if any(map(_checked, nodes)):
            parts.append("\n".join(waiting))
            waiting = []
    return [*parts[:-1], "\n".join([*parts[-1:], *waiting])]


def _test_functions(steps: Iterable[ast.stmt]) -> list[str]:
    """Calls of tests in the style of pytest or unittest, where nothing else is run."""
    if not all(map(_runs_nothing, steps)):
        return []
    calls = [f"{test.name}()" for test in _tests_in(steps, 0)]
    for group in [step for step in steps if isinstance(step, ast.ClassDef)]:
        is_case = any("TestCase" in ast.unparse(base) for base in group.bases)
        if is_case:
            calls += [
                f"{group.name}.setUpClass()\n{group.name}({test.name!r}).debug()" for test in _tests_in(group.body, 1)
            ]
        elif group.name.startswith("Test"):
            setup = [one for one in group.body if isinstance(one, ast.FunctionDef) and one.name == "setup_method"]
            before = [f"_case.setup_method({', '.join(['None'] * (len(one.args.args) - 1))})" for one in setup]
            tests = [f"_case.{test.name}()" for test in _tests_in(group.body, 1)]
            calls += ["\n".join([f"_case = {group.name}()", *before, test]) for test in tests]
    return calls


def _tests_in(steps: Iterable[ast.stmt], arguments: int) -> list[ast.FunctionDef]:
    functions = [step for step in steps if isinstance(step, ast.FunctionDef) and step.name.startswith("test")]
    return [
        one
        for one in functions
        if any("parametrize" in ast.unparse(decorator) for decorator in one.decorator_list)
        or (len(one.args.args) == arguments and not one.args.kwonlyargs)
    ]


def _checked(node: ast.AST) -> list[ast.expr]:
    """What a node asserts something of: an assert, a raise, or a call of unittest's or pytest's."""
    if isinstance(node, ast.Assert):
        return [node.test]
    if isinstance(node, ast.Raise):
        return [ast.Constant(None)]
    name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    is_check = name.startswith("assert") or name in ("raises", "fail")
    return [*node.args, ast.Constant(None)] if isinstance(node, ast.Call) and is_check else []


def _check_steps(steps: list[ast.stmt], entry: str, *, has_functions: bool) -> None:
    if entry and not any(isinstance(step, ast.FunctionDef) and step.name == "check" for step in steps):
        raise UnusableLabelError("the label has an entry_point, but its tests define no function 'check'")
    if not any(map(_checked, _walk(steps))):
        raise UnusableLabelError("the label has no tests: nothing in 'tests' is asserted")
    if not has_functions and all(map(_runs_nothing, steps)):
        raise UnusableLabelError("the label has no tests: nothing in 'tests' is run (is there an entry_point?)")


def _runs_nothing(step: ast.stmt) -> bool:
    """Definitions, text, and what is for a main program only, which tests are not."""
    if isinstance(step, ast.If):
        return "__name__" in ast.unparse(step.test)
    return isinstance(step, _DEFINITIONS) or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))


def _given(prompt: Any, entry: str) -> list[str]:
    """The prompt, where it is code that defines the function, as in HumanEval."""
    if not isinstance(prompt, str) or not entry:
        return []
    try:
        ast.parse(prompt)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [prompt] if entry in _names_of(prompt) else []


def _names_of(code: str) -> set[str]:
    """That it defines."""
    symbols = symtable.symtable(code, "<given>", "exec").get_symbols()
    return {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}


def _free_names(parts: Iterable[str]) -> set[str]:
    """Names that the tests read from their module and neither they nor Python define."""
    read: set[str] = set()
    defined = set(_BUILTINS)
    tables = [symtable.symtable(part, "<tests>", "exec") for part in parts]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if is_module or symbol.is_global():
                if symbol.is_referenced():
                    read.add(symbol.get_name())
                if symbol.is_assigned() or symbol.is_imported():
                    defined.add(symbol.get_name())
    return read - defined


def _modules(trees: Iterable[ast.Module], free: set[str]) -> set[str]:
    """Of the standard library, used by tests without an import: the program's own `math` must not decide a test."""
    nodes = list(_walk(trees))
    with_attributes = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    alone = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in with_attributes}
    return (free & sys.stdlib_module_names) - alone


def _is_of_program(step: ast.AST) -> bool:
    return isinstance(step, ast.ImportFrom) and step.module == _STUDENT_MODULE and not step.level


def _imported_names(steps: Iterable[ast.stmt]) -> tuple[set[str], str]:
    """(names that come from the program, other import statements at the top)."""
    statements = [step for step in steps if isinstance(step, _IMPORTS)]
    taken = {alias.name for step in statements if _is_of_program(step) for alias in step.names} - {"*"}
    imports = [step for step in statements if not _is_of_program(step)]
    return taken, "\n".join(map(ast.unparse, imports))


def _without_imports(part: str) -> str:
    """`part` without `from solution import f`; other names for it are given to what it imports."""
    body: list[ast.stmt] = []
    for step in ast.parse(part).body:
        if isinstance(step, ast.ImportFrom) and _is_of_program(step):
            renamed = [alias for alias in step.names if alias.asname]
            body += [ast.parse(f"{alias.asname} = {alias.name}").body[0] for alias in renamed]
        else:
            body.append(step)
    return ast.unparse(ast.Module(body, []))


def _check_imports(steps: Iterable[ast.stmt], allowed: Sequence[str]) -> None:
    for node in _walk(steps):
        used = [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.ImportFrom) and node.module == "pytest":
            used = [f"pytest.{alias.name}" for alias in node.names]
        for name in used:
            if name.startswith("pytest.") and not _PYTEST.fullmatch(name):
                raise UnusableLabelError(
                    f"its tests use {name}; of pytest there are raises, approx, fail, mark.parametrize"
                )
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not _is_of_program(node):
            modules = [node.module or "."]
        else:
            continue
        for module in (name.partition(".")[0] for name in modules):
            if module not in sys.stdlib_module_names and module not in (*allowed, "pytest"):
                raise UnusableLabelError(
                    f"its tests import {module or '.'}, which programs may not: add it to --ada_code_imports"
                )


def _reason_for_one_process(steps: Iterable[ast.stmt], remote: Sequence[str], imports: Sequence[str]) -> str:
    """Empty where the tests can run without the program."""
    telling = _IN_ONE_PROCESS - set(remote) - set(imports)
    for node in _walk(steps):
        if isinstance(node, ast.ClassDef) and _names_in(node.bases) & set(remote):
            return "a class of the tests is derived from one of the program"
        if isinstance(node, ast.ExceptHandler) and node.type is not None and _names_in([node.type]) & set(remote):
            return "the tests catch an exception of the program"
        used = _words_of(node) & telling
        if used:
            return f"the tests use {min(used)}"
    return ""


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return (one for node in nodes for one in ast.walk(node))


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {one.id for one in _walk(nodes) if isinstance(one, ast.Name)}


def _words_of(node: ast.AST) -> set[str]:
    """Names that this node alone uses."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, _IMPORTS):
        paths = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        return {part for path in paths for part in path.split(".")}
    return set()


def _reads_arguments(steps: Iterable[ast.stmt]) -> bool:
    """Whether an assert reads a variable that another statement has given to a function of the program."""
    nodes = list(_walk(steps))
    given = {id(one): one.id for node in nodes for one in _given_to_others(node)}
    passed = set(given.values())
    for checked in filter(None, map(_checked, nodes)):
        here = [one for one in _walk(checked) if isinstance(one, ast.Name) and one.id in passed]
        given_here = {given[id(one)] for one in here if id(one) in given}
        if any(id(one) not in given and one.id not in given_here for one in here):
            return True
    return False


def _given_to_others(node: ast.AST) -> list[ast.Name]:
    """Variables that are arguments of a call of anything but a built-in function."""
    if (
        not isinstance(node, ast.Call)
        or _checked(node)
        or (isinstance(node.func, ast.Name) and node.func.id in _BUILTINS)
    ):
        return []
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    return [one for one in arguments if isinstance(one, ast.Name)]


def _trusts_the_program(steps: Iterable[ast.stmt], remote: Sequence[str], entry: str) -> bool:
    """Whether what a function returns is held against what another one of the program says."""
    helpers = {name for name in remote if not name[0].isupper()} - {entry}
    if entry:
        return bool(helpers)
    if len(remote) > 1 and set(remote) <= _BUILTINS:
        return True
    return any(len(_names_in(_checked(node)) & helpers) > 1 for node in _walk(steps))
