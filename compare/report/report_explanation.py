"""What Locate and Diagnose found, as plain JSON values for `report.json`.

- `sentences`: for people, the place first, then the causes, best first.
- `note`: why nothing could be located; empty otherwise.
- `where`: whose calls were looked at, where they are not those of the judged sequence; empty otherwise.
- `looked`: the calls looked into, each as its first position and the one after its last; `calls`: of how many.
- `within`: that nothing inside differs, and where that holds; empty where something does, or nothing was looked at.
- `wrong_slot`: null, or the first wrong slot of the cache, left before the first wrong output: `position`, `layer`,
  `kind` (`keys` or `values`), and the positions `start` to `stop` - 1 of the call that wrote it; with its `sentence`.
- `file`: what the checks of the file's content say that failed, and in another tool's file the weights behind the first
  difference that are not the checkpoint's; causes in themselves where no defect is found.
- `remarks`: of each failure that has no explanation, why not.
- `located`: null, or the first difference: `position`, `call` (first position of the call), `layer` (null before the
  first layer and after the last), `site` (a key of `sites.LABELS`) and its `label`, `error` and `floor` (relative L2),
  `absent` (the graph lacks the value), `layers` (all that differ by themselves in that call), `times` (the factor
  between the value and eager's, or null), `finite`, and `not_finite` (the first NaN or infinity, where that is another
  value; empty elsewhere), `node` (operator and name in another tool's file; empty for our own), and `instead` (the site
  whose value of eager's is there; empty where none's is).
- `reproduced`: whether the replay gives the artifact's outputs, and `replay_ratio`, how far it is from them in units of
  the floor; both null where there was no graph to replay.
- `values`: parallel lists over the values compared inside the graph, each layer on its own input: `call` (its first
  position), `layer`, `site`, `error`, `floor`, `absent`, `outside`; `labels` gives each site's words.
- `weights`: null, or the quantised matrices that are not the checkpoint's, in the order of the forward pass: `first`
  (`tensor`, `layer`, null for embedding and head, `site` and its `label`), `wrong` (the names of all) and `total` (how
  many are quantised), and `causes`, the mistakes that explain some of them, each with `name`, `title`, `cause` (of the
  first that it explains) and `tensors`; with their `sentences`.
- `causes`: the defects that reproduce the artifact, best first: `name`, `title`, `cause`, `scope`, `rms` (the
  artifact's error against the model that has the defect), `floor` (that model's own noise), `effect` (how far it moves
  the logits) and `alike` (cannot be told apart from the first on these tokens).
- `nearest`: null, or the same of the one that comes closest where none reproduces it and one is close. `too_small`:
  names of defects below the noise, and `too_small_titles` the words for them; `tried`: how many, 0 where the outputs
  stay within the floor and there is nothing to diagnose; `error`: the artifact's rms error against the sound model at
  `positions`, null with nothing to diagnose.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockexport.compare.explain.diagnosis import Diagnosis
    from blockexport.compare.explain.explanation import Explanation
    from blockexport.compare.explain.wrong_matrices import WrongMatrices


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Plain JSON values by the schema above."""
    from blockexport.compare.explain.sites import LABELS

    search, slot = explanation.search, explanation.wrong_slot
    rows, found = ((), None) if search is None else (search.rows, search.location)
    located = {} if found is None else {"label": LABELS[found.site], "layers": sorted(found.layers)}
    seen = {row.site for row in rows}
    return {
        "sentences": explanation.sentences,
        "note": explanation.note if search is None else "",
        "where": explanation.where,
        "looked": [] if search is None else [[call.start, call.stop] for call in search.looked],
        "calls": 0 if search is None else search.calls,
        "within": "" if search is None or found is not None else search.within,
        "wrong_slot": None if slot is None else {**asdict(slot), "sentence": slot.sentence},
        "file": list(explanation.file),
        "remarks": list(explanation.remarks),
        "located": None if found is None else {**asdict(found), **located},
        "reproduced": None if search is None else search.reproduced,
        "replay_ratio": None if search is None else search.ratio,
        "values": {
            "call": [row.call.start for row in rows],
            "layer": [row.layer for row in rows],
            "site": [row.site for row in rows],
            "error": [row.error for row in rows],
            "floor": [row.floor for row in rows],
            "absent": [row.absent for row in rows],
            "outside": [row.outside for row in rows],
        },
        "labels": {site: label for site, label in LABELS.items() if site in seen},
        "weights": None if explanation.weights is None else _weights(explanation.weights),
        **_causes(explanation.diagnosis),
    }


def _weights(weights: WrongMatrices) -> dict[str, Any]:
    from blockexport.compare.explain.sites import LABELS

    first = weights.first
    causes = [
        {
            "name": mistake.name,
            "title": mistake.title,
            "cause": matrices[0].words,
            "tensors": [matrix.tensor for matrix in matrices],
        }
        for mistake, matrices in weights.mistakes.items()
    ]
    return {
        "first": {"tensor": first.tensor, "layer": first.layer, "site": first.site, "label": LABELS[first.site]},
        "wrong": [matrix.tensor for matrix in weights.matrices],
        "total": weights.total,
        "causes": causes,
        "sentences": [weights.place, *weights.causes],
    }


def _causes(diagnosis: Diagnosis | None) -> dict[str, Any]:
    if diagnosis is None:
        nothing: dict[str, Any] = {"causes": [], "nearest": None, "too_small": [], "too_small_titles": []}
        return {**nothing, "tried": 0, "error": None, "positions": []}
    alike = diagnosis.alike if diagnosis.findings else ()
    nearest = diagnosis.nearest
    return {
        "causes": [{**asdict(one), "title": one.title, "alike": one in alike} for one in diagnosis.findings],
        "nearest": None if nearest is None else {**asdict(nearest), "title": nearest.title},
        "too_small": list(diagnosis.too_small),
        "too_small_titles": diagnosis.too_small_titles,
        "tried": diagnosis.tried,
        "error": diagnosis.error,
        "positions": list(diagnosis.positions),
    }
