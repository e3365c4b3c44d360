"""python -m tests.golden.make_torch_goldens: writes tests/golden/torch from the PyTorch module."""

import json
from types import SimpleNamespace

import numpy as np
import torch

from hyla_lm.export.modeling_hyla import HylaDecoder
from hyla_lm.model.config import ModelConfig
from tests.golden.torch_models import FOLDER, MODELS, described, tensors_of, token_ids


def torch_logits(config: ModelConfig) -> np.ndarray:
    """The logits of PyTorch for a model whose parameters follow the formula."""
    decoder = HylaDecoder(SimpleNamespace(**described(config)))
    tensors = {name: torch.from_numpy(x) for name, x in tensors_of(config).items()}
    decoder.load_state_dict(tensors)
    with torch.no_grad():
        return decoder(torch.from_numpy(token_ids())).numpy()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, config in MODELS.items():
        text = json.dumps(described(config))
        np.savez_compressed(FOLDER / f"{name}.npz", config=text, logits=torch_logits(config))


if __name__ == "__main__":
    main()
