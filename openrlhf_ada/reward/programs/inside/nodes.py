"""Linked lists and binary trees as LeetCode has them: lists in a label, objects with these names in a program."""

from __future__ import annotations

from typing import Any


class ListNode:
    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


def arguments_of(function: Any, given: list[Any], names: dict[str, Any]) -> list[Any]:
    """`given` with the objects that the function's annotations ask for, of the classes in `names`."""
    code, hints = getattr(function, "__code__", None), getattr(function, "__annotations__", {})
    parameters = code.co_varnames[hasattr(function, "__self__") : code.co_argcount] if code else ()
    return [_built(str(hints.get("".join(parameters[at : at + 1]))), one, names) for at, one in enumerate(given)]


def _built(hint: str, value: Any, names: dict[str, Any]) -> Any:
    is_list, is_tree = "ListNode" in hint, "TreeNode" in hint
    if not (is_list or is_tree) or not isinstance(value, list):
        return value
    inner = hint.lower().find("list[") + 1
    if inner:
        return [_built(hint[inner:], one, names) for one in value]
    return _list(names["ListNode"], value) if is_list else _tree(names["TreeNode"], value)


def _list(kind: Any, values: list[Any]) -> Any:
    head = None
    for value in reversed(values):
        node = kind(value)
        node.next, head = head, node
    return head


def _tree(kind: Any, values: list[Any]) -> Any:
    nodes = [None if value is None else kind(value) for value in values]
    children = iter(nodes[1:])
    for node in nodes:
        if node is not None:
            node.left, node.right = next(children, None), next(children, None)
    return nodes[0] if nodes else None


def plain(value: Any) -> list[Any]:
    """The values of a list, or of a tree by levels. Raises TypeError for anything else."""
    found: list[Any] = []
    if hasattr(value, "val") and hasattr(value, "next"):
        while value is not None:
            found.append(value.val)
            value = value.next
        return found
    if not (hasattr(value, "val") and hasattr(value, "left")):
        raise TypeError
    level = [value]
    for node in level:
        found.append(None if node is None else node.val)
        level += [] if node is None else [node.left, node.right]
    while found[-1] is None:
        found.pop()
    return found
