"""What newcomers do wrong, and a fragment of the one sentence that each of them reads.

A row is a command line and what its sentence must name: the setting, the flag or the file to
change, or what may have been meant. `{name}` is one of `places`. A new command gets a list here.
"""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.bad_input.conftest import status_of
from tests.conftest import SEQUENCE_LENGTH, TINY

LONGEST = 600
TRAIN = "train --gin_file={tiny} --workdir={new}"
PREPARE = "data prepare --tokenizer={tokenizer} --sequence_length=16 --output={new}"
LAUNCH = "--name=hyla --project=p --zone=z --gin_file=gin/quickstart.gin --workdir=gs://b/r"
MISTAKES: dict[str, list[tuple[str, str]]] = {
    "hyla-lm": [
        ("", "give one of train, evaluate"),
        ("trian --workdir={new}", "did you mean train?"),
        ("--workdir={new}", "hyla-lm: --workdir={new} is unknown"),
        ("evaluat", "did you mean evaluate?"),
        ("{tiny}", "there is no command"),
        ("completion fish", "shell cannot be 'fish'; give one of bash, zsh"),
    ],
    "flags": [
        ("train", "--workdir is missing: folder of the run, such as --workdir=runs/mine"),
        ("train --gin_file={tiny}", "--workdir=runs/mine"),
        ("train --workdir", "--workdir: expected one argument"),
        ("train --workdri={new} --gin_file={tiny}", "did you mean --workdir?"),
        ("train --gin-file={tiny} --workdir={new}", "did you mean --gin_file?"),
        ("train --gin_files={tiny} --workdir={new}", "did you mean --gin_file?"),
        ("train {tiny} --workdir={new}", "write --gin_file={tiny}"),
        (TRAIN + " --step=last", "--step: invalid int value: 'last'"),
        (TRAIN + " --gin ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " --gin=ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " --gin_ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " -gin.ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " --ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " --gin.ModelConfig.num_layers 1", "write --gin.ModelConfig.num_layers=VALUE"),
        (TRAIN + " --gin.ModelConfig.num_layers", "write --gin.ModelConfig.num_layers=VALUE"),
    ],
    "settings": [
        (TRAIN + " --gin.ModelConfig.num_layer=1", "did you mean ModelConfig.num_layers?"),
        (TRAIN + " --gin.Modelconfig.num_layers=1", "did you mean ModelConfig?"),
        (TRAIN + " --gin.Model.num_layers=1", "there is no class 'Model'"),
        (
            TRAIN + " --gin.TrainConfig.learning_rate=1",
            "did you mean OptimizerConfig.learning_rate?",
        ),
        (TRAIN + " --gin.learning_rate=1", "write OptimizerConfig.learning_rate = …"),
        (TRAIN + " --gin.TrainConfig.lr=1", "hyla-lm describe TrainConfig lists them"),
        (TRAIN + " --gin.SEQ_LENGTH=16", "SEQ_LENGTH = … sets a macro that nothing uses"),
        (TRAIN + " --gin.TrainConfig.steps=%STEPS", "%STEPS is used but never set"),
        (TRAIN + " --gin.ModelConfig.attention=hylla", "did you mean hyla?"),
        (TRAIN + " --gin.ModelConfig.attention=softmax,linaer", "did you mean linear?"),
        (TRAIN + " --gin.ModelConfig.attention=softmax,hyla,linear", "num_layers = 2"),
        (TRAIN + " --gin.ModelConfig.dtype=bf16", "'bfloat16'"),
        (TRAIN + " --gin.ModelConfig.positions=rotery", "did you mean rotary?"),
        (TRAIN + " --gin.ModelConfig.attention_implementation=block", "'blocked'"),
        (TRAIN + " --gin.ModelConfig.num_layers=softmax", "softmax is given but int is wanted"),
        (TRAIN + " --gin.ModelConfig.num_layers=2.0", "must be int: write 2"),
        (TRAIN + " --gin.ModelConfig.num_layers=-2", "num_layers = -2 must be at least 1"),
        (TRAIN + " --gin.ModelConfig.num_layers=", "nothing is given but int is wanted"),
        (TRAIN + """ --gin.ModelConfig.num_layers="'2'" """, "must be int: write 2"),
        (TRAIN + " --gin.ModelConfig.remat=yes", "write True or False"),
        (TRAIN + """ --gin.ModelConfig.attention="'hyla" """, "quotes that close"),
        (TRAIN + " --gin.OptimizerConfig.learning_rate=fast", "float is wanted"),
        (TRAIN + " --gin.OptimizerConfig.learning_rate=-1", "learning_rate = -1 must be at least"),
        (TRAIN + " --gin.LanguageModel.data=@Rows", "write @Rows()"),
        (TRAIN + " --gin.LanguageModel.data=Rows", "write @Rows()"),
        (TRAIN + " --gin.LanguageModel.data=@Row()", "did you mean Rows?"),
        (TRAIN + " --gin.LanguageModel.data=@SampleCorpuss()", "did you mean SampleCorpus?"),
        (TRAIN + " --gin.C4Stream.train=a.gz", "nothing builds C4Stream"),
        (
            TRAIN + " --gin.LanguageModel.data=@C4Stream() --gin.C4Stream.train=c4/a.gz",
            "write ('c4/a.gz',), with a comma",
        ),
        (TRAIN + " --gin.TrainConfig.batch_size=8 --gin.TrainConfig.accumulate_steps=3", "3"),
        (TRAIN + " --gin.TrainConfig.batch_size=0", "batch_size = 0 must be at least 1"),
        (TRAIN + " --gin.TrainConfig.batch_size=100000", "TrainConfig.batch_size"),
        (TRAIN + " --gin.LanguageModel.sequence_length=64", "LanguageModel.sequence_length = 64"),
        (TRAIN + " --gin.OptimizerConfig.warmup_steps=99", "OptimizerConfig.warmup_steps = 99"),
        (TRAIN + " --gin.ModelConfig.head_dim=7", "ModelConfig.head_dim = 7"),
        (TRAIN + " --gin.MeshConfig.data=3", "data=3"),
        (TRAIN + " --gin.TrainConfig.seed=-1", "TrainConfig.seed = -1"),
        (TRAIN + " --gin.LanguageModel.vocab_size=32000", "LanguageModel.vocab_size = 32000"),
        (TRAIN + " '--gin.import nonsense'", "nonsense"),
    ],
    "gin files": [
        ("train --workdir={new}", "--gin_file is missing: give gin/quickstart.gin, "),
        (
            "train --workdir={new} --gin.TrainConfig.steps=3",
            "--gin_file is missing: give gin/quick",
        ),
        ("train --workdir={new} --gin_file=gin/quickstrat.gin", "did you mean gin/quickstart.gin?"),
        ("train --workdir={new} --gin_file=quickstart.gin", "did you mean gin/quickstart.gin?"),
        ("train --workdir={new} --gin_file=/nope.gin", "--gin_file=/nope.gin does not exist"),
        ("train --workdir={new} --gin_file={folder}", "{folder} is a folder"),
        ("train --workdir={new} --gin_file={python}", "{python} is Python, not gin"),
        ("train --workdir={new} --gin_file={binary}", "{binary} is not UTF-8 text"),
        ("train --workdir={new} --gin_file={empty}", "TrainConfig.task is not set"),
        ("train --workdir={new} --gin_file={unquoted}", "{unquoted}:2: text needs quotes"),
        ("train --workdir={new} --gin_file={lowercase}", "{lowercase}:1: write ModelConfig.remat"),
        ("train --workdir={new} --gin_file={prose}", "{prose}:1: "),
        ("train --workdir={new} --gin_file={unknown}", "did you mean ModelConfig.num_layers?"),
        ("train --workdir={new} --gin_file={including}", "did you mean gin/quickstart.gin?"),
        ("train --workdir={new} --gin_file={circle}", "{circle}"),
        ("train --workdir={new} --gin_file={tiny} --gin_file={other}", "{other} sets it to 99"),
        ("train --workdir={new} --gin_file=gin/c4_rows.gin", "such as gin/c4_50m.gin"),
        ("train --workdir={new} --gin_file=gin/c4_50m_hyla.gin", "such as gin/c4_rows.gin"),
        (
            "train --workdir={new} --gin_file=gin/c4_50m_hyla.gin --gin_file=gin/c4_rows.gin",
            "Rows.train is not set",
        ),
        (
            "train --workdir={new} --gin_file=gin/c4_50m_hyla.gin --gin_file=gin/c4_stream.gin",
            "C4Stream.train is not set",
        ),
        (
            "train --workdir={new} --gin_file=gin/quickstart.gin --gin_file=gin/c4_50m.gin",
            "gin/quickstart.gin sets TrainConfig.steps = 2600 and gin/c4_50m.gin sets it to",
        ),
    ],
    "text and rows": [
        (TRAIN + " --gin.Rows.train={new}", "{new}/manifest.json does not exist"),
        (TRAIN + " --gin.Rows.train={empty}", "{empty}"),
        (TRAIN + " --gin.Rows.train=", "Rows.train is not set"),
        (TRAIN + " --gin.Rows.train={rows}/validation", "Rows.train"),
        (TRAIN + " --gin.Rows.validation={rows}/train", "Rows.validation"),
        (TRAIN + " --gin.Rows.tokenizer={new}", "{new}"),
        (TRAIN + " --gin.Rows.tokenizer={empty}", "{empty}"),
        (TRAIN + " --gin.Rows.tokenizer={rows}", "{rows}"),
        (TRAIN + " --gin.Rows.verify=never", "must be one of 'background', 'before', 'off'"),
    ],
    "workdirs": [
        ("train --gin_file={tiny} --workdir={empty}", "--workdir={empty}"),
        ("train --gin_file={tiny} --workdir={folder}", "--workdir={folder}"),
        ("train --gin_file={tiny} --workdir={run}", "{run}"),
        ("train --gin_file={run}/config.gin --workdir={run} --step=1", "step 1"),
        (
            "train --gin_file={run}/config.gin --workdir={run} --gin.ModelConfig.model_dim=12",
            "ModelConfig.model_dim = 8",
        ),
        (
            "train --gin_file={run}/config.gin --workdir={run} --gin.TrainConfig.steps=1 "
            "--gin.OptimizerConfig.warmup_steps=0",
            "TrainConfig.steps = 1",
        ),
        ("train --gin_file={tiny} --workdir=s3://bucket/run", "gs://"),
    ],
    "evaluate": [
        ("evaluate", "--workdir is missing"),
        ("evaluate --workdir={new}", "--workdir={new} holds no run"),
        ("evaluate --workdir={empty}", "--workdir={empty}"),
        ("evaluate --workdir={started}", "no checkpoint"),
        ("evaluate --workdir={run} --step=1", "step 1"),
        ("evaluate --workdir={run} --step=-1", "step -1"),
        ("evaluate --workdir={run} --steps=2", "did you mean --step?"),
        ("evaluate --workdir={run} --gin_file={tiny}", "{run}"),
        ("evaluate --workdir={run} --gin.ModelConfig.num_layers=2", "ModelConfig.num_layers = 1"),
        ("evaluate --workdir={strange}", "--trust_imports"),
    ],
    "sample": [
        ("sample --workdir={new} --prompt=a", "--workdir={new} holds no run"),
        ("sample --workdir={run} --promt=a", "did you mean --prompt?"),
        ("sample --workdir={run} --prompt=a --temperature=-1", "--temperature"),
        ("sample --workdir={run} --prompt=a --temperature=hot", "invalid float value: 'hot'"),
        ("sample --workdir={run} --prompt=a --top_p=2", "--top_p"),
        ("sample --workdir={run} --prompt=a --max_tokens=0", "--max_tokens"),
        ("sample --workdir={run} --prompt=a --samples=0", "--samples=0 must be at least 1"),
        ("sample --workdir={run} --prompt=a --interactive", "leave out --prompt"),
        ("sample --workdir={run} --prompts_file={new}", "--prompts_file={new} cannot be read"),
        ("sample --workdir={run} --prompts_file={binary}", "{binary} is not UTF-8 at byte"),
    ],
    "score": [
        ("score --text=a", "--workdir is missing"),
        ("score --workdir={new} --text=a", "--workdir={new} holds no run"),
        ("score --workdir={run} --text=a --input={prose}", "give one of them"),
        ("score --workdir={run} --text=", "--text has no text to score"),
        ("score --workdir={run} --input={new}", "--input={new} cannot be read"),
    ],
    "beginnings": [
        (TRAIN + " --gin.WarmStart.run={empty}", "WarmStart.run = '{empty}' has no"),
        (TRAIN + " --gin.WarmStart.run={run} --gin.WarmStart.only=x", "with a comma"),
        (TRAIN + " --gin.Branch.run={run} --gin.Branch.step=1", "has no checkpoint of step 1"),
        (TRAIN + " --gin.Branch.runs={run}", "did you mean Branch.run?"),
    ],
    "own text": [
        ("train --gin_file=gin/own_text.gin --workdir={new} --gin.ROWS={new}", "{new}"),
        ("data prepare --input {empty} --output {new} --train_tokenizer", "{empty}"),
        ("data prepare --input {new} --output {new}2 --train_tokenizer", "--input"),
        ("data prepare --input {prose} --output {new}", "--train_tokenizer"),
    ],
    "export": [
        (
            "export --workdir={run} --output={new} --format=onnx",
            "--format cannot be 'onnx'; give one of",
        ),
        ("export", "--workdir is missing"),
        ("export --workdir={run} --output={folder}", "--output={folder} is not empty"),
        ("export --workdir={run} --outptu={new}", "did you mean --output?"),
    ],
    "inspect": [
        ("inspect", "workdir is missing"),
        ("inspect {new}", "{new}"),
        ("inspect {empty}", "{empty}"),
        ("inspect {run} --step=7", "step 7"),
        ("inspect {run} --against={new}", "{new}"),
        ("inspect --workdir={run}", "--workdir={run} is unknown"),
    ],
    "plan": [
        ("plan --gin_file={tiny}", "--topology is missing: slice, such as v5e:4x4"),
        ("plan --gin_file={tiny} --topology=v9:4x4", "--topology=v9:4x4"),
        ("plan --gin_file={tiny} --topology=v5e-16", "--topology=v5e-16"),
        ("plan --gin_file={tiny} --topology=v5e:4x4 --compiles=-1", "--compiles=-1"),
        ("plan --gin_file={tiny} --topology=v5e:4x4 --compiles=few", "'few'"),
        ("plan --gin_file={tiny} --topolgy=v5e:4x4", "did you mean --topology?"),
    ],
    "describe": [
        ("describe learnin_rate", "did you mean learning_rate?"),
        ("describe Modelconfg", "did you mean ModelConfig?"),
        ("describe xyzzy", "hyla-lm describe lists all"),
        ("describe gin/quickstrat.gin", "did you mean gin/quickstart.gin?"),
        ("describe {unquoted}", "text needs quotes"),
        ("describe --all", "--all is unknown"),
    ],
    "data": [
        ("data", "give one of prepare, verify"),
        ("data prepar", "did you mean prepare?"),
        (PREPARE, "--input --task is required"),
        (PREPARE + " --input={new}", "{new}"),
        (PREPARE + " --input={empty}", "empty.gin is of no known format"),
        (PREPARE + " --input={text} --shards=0", "--shards=0"),
        (PREPARE + " --input={text} --sequence_length=-1", "--sequence_length=-1"),
        (PREPARE + " --input={text} --tokeniser=x", "did you mean --tokenizer?"),
        (PREPARE + " --input={text} --tokenizer={new}", "{new}"),
        (PREPARE + " --input={text} --tokenizer={text}", "{text}"),
        (PREPARE + " --input={text} --engine=spark", "--engine cannot be 'spark'"),
        (PREPARE + " --task=c4_lm", "hyla_lm[seqio]"),
        (PREPARE + " --input={text} --gin.TrainConfig.steps=1", "TrainConfig"),
        ("data verify", "FOLDER is missing"),
        ("data verify {new}", "{new}"),
        ("data verify {folder}", "{folder}"),
        ("data verify {rows}/train --tokenizer={empty}", "{empty}"),
        ("data tokenizer --input={new} --output={new}", "{new}"),
        ("data tokenizer --input={text} --output={new}/a.model --vocab_size=9", "vocab_size"),
        ("data tokenizer --input={text} --output={folder} --vocab_size=277", "{folder}"),
        ("data sample_corpus --vocab_size=3", "vocab_size = 3"),
        ("data sample_corpus --cache={empty}", "{empty}"),
    ],
    "evals": [
        ("evals", "give one of fuzzy_logic"),
        ("evals fuzy_logic", "did you mean fuzzy_logic?"),
        ("evals fuzzy_logic", "--workdir is missing"),
        ("evals fuzzy_logic --workdir={new} --seeds=a", "a must be different numbers"),
        ("evals fuzzy_logic --workdir={new} --variants=sofmax", "softmax"),
        ("evals fuzzy_logic --workdir={new} --experiment=table", "table_a1"),
        ("evals fuzzy_logic --workdir={new} --preset=easy", "strict"),
        ("evals fuzzy_logic --workdir={new} --steps=0", "--steps"),
        ("evals report {new}", "{new}"),
        ("evals latent_codes {new}", "{new}"),
        ("evals look --workdir={new}", "{new}"),
    ],
    "tpu": [
        ("tpu", "give one of create"),
        ("tpu creat", "did you mean create?"),
        ("tpu create --name=hyla", "--project is missing"),
        (f"tpu create {LAUNCH} --accelerator-type=v5e-16", "--accelerator-type=v5e-16"),
        (f"tpu create {LAUNCH} --name=Hyla", "--name=Hyla"),
        (f"tpu run {LAUNCH} --dry-run", "--repository"),
        (f"tpu run {LAUNCH} --repository=r --revision=main --dry-run", "--revision=main"),
        (f"tpu run {LAUNCH} --gin ModelConfig.remat=1", "write --gin.ModelConfig.remat=1"),
        (f"tpu run {LAUNCH} --work_dir=gs://b/r", "did you mean --workdir?"),
        ("tpu run @{new}", "@{new} cannot be read"),
        ("tpu gke --name=hyla --workdir=/r --gin_file=a", "--image is missing"),
        ("tpu gke --name=hyla --image=i --gin_file=a", "--workdir is missing"),
    ],
}
ROWS = [(line, fragment) for rows in MISTAKES.values() for line, fragment in rows]
WRITTEN = {
    "python.py": "import jax\n\nmodel = jax.nn.relu\n",
    "empty.gin": "",
    "unquoted.gin": "# mine\nRows.train = rows/train\n",
    "lowercase.gin": "ModelConfig.remat = true\n",
    "prose.gin": "Train a model of two layers.\n",
    "unknown.gin": "ModelConfig.num_layer = 2\n",
    "including.gin": "include 'gin/quickstrat.gin'\n",
    "other.gin": "TrainConfig.steps = 99\n",
    "text.txt": "a text that is too short for anything\n",
}


@pytest.fixture(scope="module")
def places(
    tiny_rows: Rows, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Files and folders that people confuse, by the names that the rows have."""
    home = tmp_path_factory.mktemp("places")
    for name, text in WRITTEN.items():
        (home / name).write_text(text)
    found = {Path(name).stem: home / name for name in WRITTEN}
    for name in ("folder", "started", "strange"):
        (home / name).mkdir()
        found[name] = home / name
    (home / "folder" / "notes.txt").write_text("mine")
    shutil.copy(trained / "config.gin", home / "started")
    (home / "strange" / "config.gin").write_text("import stranger\n")
    (home / "circle.gin").write_text(f"include '{home / 'circle.gin'}'\n")
    (home / "binary.gin").write_bytes(b"\xff\xfe\x00")
    (home / "tiny.gin").write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    own = {name: home / f"{name}.gin" for name in ("circle", "binary", "tiny")}
    rows = {"rows": Path(tiny_rows.train).parent, "tokenizer": Path(tiny_rows.tokenizer)}
    return {**found, **own, **rows, "run": trained, "new": home / "new"}


@pytest.fixture(autouse=True)
def nothing_is_changed(trained: Path, places: dict[str, Path]) -> Iterator[None]:
    """A refused command trains nothing and leaves the run of others alone."""
    before = (trained / "metrics.jsonl").read_text()
    yield
    assert (trained / "metrics.jsonl").read_text() == before
    assert not list(places["new"].glob("**/metrics.jsonl"))
    shutil.rmtree(places["new"], ignore_errors=True)


@pytest.mark.parametrize(("line", "fragment"), ROWS, ids=[f"hyla-lm {line}" for line, _ in ROWS])
def test_a_mistake_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], places: dict[str, Path], line: str, fragment: str
) -> None:
    capsys.readouterr()
    status = status_of(*shlex.split(line.format_map(places)))
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    assert "Traceback" not in err and len(err.splitlines()) <= 2 and err.endswith("\n")
    sentence = err.splitlines()[-1]
    assert sentence.startswith(("hyla-lm", "tpu.")) and fragment.format_map(places) in sentence
    assert len(sentence) < LONGEST


def test_there_are_rows_for_every_command() -> None:
    from hyla_lm.commands import COMMANDS, FOLDERS

    first = {line.split()[0] for line, _ in ROWS if line}
    assert {*COMMANDS, *FOLDERS} <= first
