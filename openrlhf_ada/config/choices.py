"""Values of flags that choose no function, with what each needs of the pieces of the method and what it lacks."""

from __future__ import annotations

from openrlhf_ada.core.pieces import Need, Piece

PREDICTORS = {
    "ema": Piece(None, lacks={Need.CRITICS_RATE: "counts outcomes"}),
    "rating": Piece(None, lacks={Need.CRITICS_RATE: "rates outcomes"}),
    "critic": Piece(None, lacks={Need.COUNTED_RATE: "asks a critic, whose baseline is called critic"}),
}
"""--ada_estimator."""

UNRESOLVED = {
    "keep": Piece(None),
    # Else leaving them out would change the objective.
    "refill": Piece(None, frozenset({Need.SILENT_UNRESOLVED, Need.ONE_GROUP_SIZE})),
}
"""--ada_unresolved."""

SCORES = {
    "unit": Piece(None),
    "raw": Piece(
        None,
        lacks={
            Need.PARTIAL_CREDIT: "decide as positive or negative only",
            Need.UNSHAPED_REWARDS: "are rewards of any size",
        },
    ),
}
"""--ada_scores."""

SHAPED = Piece(None, lacks={Need.UNSHAPED_REWARDS: "adds to some of them"})
"""--ada_format."""

MATCHED_OBJECTIVE = Piece(None, lacks={Need.LOG_OBJECTIVE: "is another"})
"""--ada_objective matched:NAME."""
