"""Latent codes of a language model at tokens of validation rows, saved for study.

For each chosen query token, in every layer, it saves the code of the token with itself and the
codes with the TOP_KEYS keys that add most to it. A key adds the norm of a[h] z or a[h] v[h]; the
length of its code would mean nothing where codes are normalised over heads.

Dimensions: N layers, Q queries, J keys, H heads, T tokens a row, B rows.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.evals.latent_codes import figures as latent_figures
from hyla_lm.evals.latent_codes.decoding import effective_rank
from hyla_lm.evals.latent_codes.report import Report, value_units, write_npz
from hyla_lm.evals.latent_codes.samples import Choices, active_units, any_active
from hyla_lm.model.inspection import attention_layers
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.restored import RestoredRun
from hyla_lm.tasks.language_model import LanguageModelTask, unpack

QUERIES_A_ROW, TOP_KEYS = 8, 4
PAIRS_AT_ONCE = 2**18
FREQUENT = 15
NAMES = ("self_code_NxQxH", "key_code_NxQxJxH", "key_position_NxQxJ")


def report(run: RestoredRun, choices: Choices, out: Path) -> Report:
    """Ranks and dead units of a language model; writes codes and pictures to `out`."""
    task = run.program.task
    if not isinstance(task, LanguageModelTask):
        raise UserError("--workdir holds no language model.")
    arrays, active = collect(run, task, choices)
    pieces = np.array([task.tokenizer.processor.IdToPiece(i) for i in range(task.io.vocab_size)])
    write_npz(out / "codes.npz", {**arrays, "piece_V": pieces})
    own, others = arrays["self_code_NxQxH"], arrays["key_code_NxQxJxH"]
    colours = {
        "token": _frequent(arrays["token_Q"], pieces),
        "position in row": (arrays["position_Q"], None),
    }
    latent_figures.draw_tsne(out / "tsne.png", own, colours, choices.seed)
    strongest = others[:, :, 0]
    return {
        "task": "language model",
        "attention": list(run.program.experiment.model.pattern),
        "choices": asdict(choices),
        "queries": int(own.shape[1]),
        "effective_rank": {
            "with itself": [effective_rank(code) for code in own],
            "with the key that adds most": [effective_rank(code) for code in strongest],
        },
        "code_size": own.shape[-1],
        "value_units": value_units([active]),
    }


def collect(
    run: RestoredRun, task: LanguageModelTask, choices: Choices
) -> tuple[dict[str, np.ndarray], list[np.ndarray | None]]:
    """Arrays over choices.examples query tokens, or fewer if rows run out, and the active units.

    If fewer than J keys add anything, the other key positions are -1 and their codes 0.
    """
    length, model = task.sequence_length, run.program.model
    rng = np.random.default_rng(choices.seed)

    @jax.jit
    def look(params: Any, tokens_BxT1: jax.Array, query_BxQ: jax.Array) -> Any:
        input_BxT, _, _, segment_BxT = unpack(tokens_BxT1, task.tokenizer.bos)
        layers = attention_layers(model, params, input_BxT, segment_BxT)
        picked = [pick(layer.code_BxHxTxS, layer.contributions(), query_BxQ) for layer in layers]
        codes = jax.tree.map(lambda *leaves: jnp.stack(leaves), *picked)
        return codes, [active_units(layer) for layer in layers]

    a_row = min(QUERIES_A_ROW, length)
    rows_at_once = max(1, PAIRS_AT_ONCE // length**2)
    parts: list[dict[str, np.ndarray]] = []
    active: list[list[np.ndarray | None]] = []
    left = choices.examples
    for tokens_BxT1, row_B in _rows(task, rows_at_once):
        query_BxQ = np.stack(
            [np.sort(rng.choice(length, a_row, replace=False)) for _ in range(rows_at_once)]
        )
        codes, units = jax.device_get(look(run.params, tokens_BxT1, query_BxQ))
        flat = {
            name: values.reshape(len(values), rows_at_once * a_row, *values.shape[3:])
            for name, values in zip(NAMES, codes, strict=True)
        }
        wanted = np.flatnonzero(np.repeat(row_B >= 0, a_row))[:left]
        parts.append(
            {name: values[:, wanted] for name, values in flat.items()}
            | {
                "row_Q": np.repeat(row_B, a_row)[wanted],
                "position_Q": query_BxQ.ravel()[wanted],
                "token_Q": np.take_along_axis(tokens_BxT1, query_BxQ, 1).ravel()[wanted],
                "next_token_Q": np.take_along_axis(tokens_BxT1, query_BxQ + 1, 1).ravel()[wanted],
            }
        )
        active.append(units)
        left -= len(wanted)
        if left <= 0:
            break
    arrays = {
        name: np.concatenate([part[name] for part in parts], axis=1 if name in NAMES else 0)
        for name in parts[0]
    }
    return arrays, any_active(active)


def pick(
    code_BxHxTxS: jax.Array, contribution_BxTxS: jax.Array, query_BxQ: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Codes of queries with themselves, BxQxH, and with the keys that add most, BxQxJxH.

    The third array has the positions of these keys, BxQxJ; the key that adds most is first.
    """
    code_BxTxSxH = jnp.moveaxis(code_BxHxTxS, 1, -1)
    of_query = jax.vmap(lambda per_T, query_Q: per_T[query_Q])
    code_BxQxSxH, added_BxQxS = (of_query(x, query_BxQ) for x in (code_BxTxSxH, contribution_BxTxS))
    largest_BxQxJ, key_BxQxJ = jax.lax.top_k(added_BxQxS, min(TOP_KEYS, added_BxQxS.shape[-1]))

    def of_keys(key_BxQxJ: jax.Array) -> jax.Array:
        return jnp.take_along_axis(code_BxQxSxH, key_BxQxJ[..., None], axis=2)

    adds = largest_BxQxJ > 0
    return (
        of_keys(query_BxQ[..., None])[:, :, 0],
        jnp.where(adds[..., None], of_keys(key_BxQxJ), 0),
        jnp.where(adds, key_BxQxJ, -1),
    )


def _rows(task: LanguageModelTask, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of validation rows and row numbers; rows that fill the last batch have number -1."""
    for batch in task.evaluation_sets(BatchShard(count), True)[""]:
        yield batch["tokens"], batch["row"]


def _frequent(token_Q: np.ndarray, pieces: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Each token's rank among the most frequent; all other tokens share the last rank."""
    ids, counts = np.unique(token_Q, return_counts=True)
    chosen = ids[np.argsort(-counts, kind="stable")[:FREQUENT]]
    place_Q = np.full(len(token_Q), len(chosen))
    for place, token in enumerate(chosen):
        place_Q[token_Q == token] = place
    return place_Q, [*(str(pieces[token]).replace("\u2581", "_") for token in chosen), "others"]
