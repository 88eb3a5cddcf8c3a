"""Programs as people write them, tests in the words of pytest, unittest and LeetCode: right ones and their twins."""

from __future__ import annotations

from typing import Any

import pytest

from openrlhf_ada.reward.grade import UnusableLabelError
from openrlhf_ada.reward.programs.answers import grade

DIVIDE = "def divide(a, b):\n    if b == 0:\n        raise ValueError('by zero')\n    return a / b\n"
SORT = "def order(xs):\n    xs.sort()\n"
REVERSE = """
class Solution:
    def reverse(self, head: Optional[ListNode]) -> Optional[ListNode]:
        before = None
        while head:
            head.next, before, head = before, head, head.next
        return before
"""
MERGE = """
class Solution:
    def merge(self, lists: List[Optional[ListNode]]) -> Optional[ListNode]:
        values = []
        for node in lists:
            while node:
                values.append(node.val)
                node = node.next
        head = None
        for value in sorted(values, reverse=True):
            head = ListNode(value, head)
        return head
"""
INVERT = """
def invert(root: TreeNode) -> TreeNode:
    if root:
        root.left, root.right = invert(root.right), invert(root.left)
    return root
"""
OWN_NODES = "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val, self.next = val, next\n"
SUMS = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
HALF = {"fn_name": "divide", "inputs": [[1, 2]], "outputs": [0.5]}
PRINT = "print(sum(map(int, input().split())))"


def blocks(*programs: str) -> str:
    return "".join(f"```python\n{program}\n```\nSo:\n" for program in programs)


def calls(name: str, *pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"fn_name": name, "inputs": [[given] for given, _ in pairs], "outputs": [expected for _, expected in pairs]}


RAISES = "import pytest\ndef test():\n    with pytest.raises(ValueError, match='by'):\n        divide(1, 0)"
RAISES_TEXT = RAISES.replace(", match='by'):", ") as e:")
NEAR = "import pytest\ndef test():\n    assert divide(1, 3) == pytest.approx(0.33333333)"
NEAR_EACH = "from pytest import approx\nassert [divide(1, 3), 1] == approx([0.333, 1], abs=1e-3)"
CASE = "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        "
CASE_RAISES = CASE + "with self.assertRaises(ValueError):\n            divide(1, 0)"
CASE_ORDER = CASE + "xs = [2, 1]\n        order(xs)\n        self.assertEqual(xs, [1, 2])"
EACH = """
import pytest
class TestIt:
    @pytest.mark.parametrize("a", [2, 4])
    def test(self, a):
        assert divide(a, 1) == a
"""
SWAPPED = INVERT.replace("root.right), invert(root.left", "root.left), invert(root.right")
CUT = REVERSE.replace("before, head, head.next", "before, head, None")


@pytest.mark.parametrize(
    ("right", "wrong", "label"),
    [
        (DIVIDE, "def divide(a, b): return 7", RAISES),
        (DIVIDE, DIVIDE.replace("Value", "Key"), RAISES),
        (DIVIDE, DIVIDE.replace("by", "no"), RAISES),
        (DIVIDE, DIVIDE.replace("by", "no"), RAISES_TEXT + "\n    assert 'by' in str(e.value)"),
        (DIVIDE, DIVIDE.replace("a / b", "a / b + 1e-5"), NEAR),
        (DIVIDE, DIVIDE.replace("a / b", "a / b + 1e-2"), NEAR_EACH),
        (DIVIDE, DIVIDE.replace("Value", "Key"), CASE_RAISES),
        (SORT, "def order(xs): pass", CASE_ORDER),
        (DIVIDE, "def divide(a, b): return 2", EACH),
        (REVERSE, REVERSE.replace("return before", "return head"), calls("reverse", ([1, 2, 3], [3, 2, 1]), ([], []))),
        (OWN_NODES + REVERSE, CUT, calls("reverse", ([1, 2, 3], [3, 2, 1]), ([1], [1]))),
        (MERGE, MERGE.replace(", reverse=True", ""), calls("merge", ([[1, 4], [2], []], [1, 2, 4]), ([], []))),
        (INVERT, SWAPPED, calls("invert", ([4, 2, 7, None, 3], [4, 7, 2, None, None, 3]), ([], []))),
        (f"{PRINT[:-1]} * 1.0)", f"{PRINT[:-1]} + 0.5)", SUMS),
    ],
)
def test_right_programs_pass_and_their_twins_do_not(right: str, wrong: str, label: Any) -> None:
    assert grade(blocks(right), label).score == 1.0
    assert grade(blocks(wrong), label).score == 0.0


@pytest.mark.parametrize(
    ("response", "label", "score"),
    [
        (blocks(DIVIDE, "print(divide(1, 2))"), "assert divide(1, 2) == 0.5", 1.0),
        (blocks(DIVIDE, "from solution import divide\nprint(divide(1, 2))"), HALF, 1.0),
        (blocks(PRINT, "print(1 + 2)  # 3"), SUMS, 1.0),
        (blocks(PRINT.replace("sum", "max"), PRINT), SUMS, 1.0),
        # The last one that could be meant counts.
        (blocks(DIVIDE, "def divide(a, b): return 7"), "assert divide(1, 2) == 0.5", 0.0),
        (blocks(PRINT, PRINT.replace("sum", "max")), SUMS, 0.0),
        (f"The program:\n\n{PRINT}", SUMS, 1.0),
        (f"~~~python\n{PRINT}\n~~~", SUMS, 1.0),
        (f"<think>{PRINT}</think> So it is 3.", SUMS, 0.0),
    ],
)
def test_the_program_of_a_response(response: str, label: Any, score: float) -> None:
    assert grade(response, label).score == score


@pytest.mark.parametrize("used", ["pytest.fixture", "pytest.mark.skip", "pytest.warns"])
def test_what_there_is_not_of_pytest_is_named(used: str) -> None:
    with pytest.raises(UnusableLabelError, match=used):
        grade(blocks(DIVIDE), f"import pytest\nx = {used}\nassert divide(1, 1) == 1")
