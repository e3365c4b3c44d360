"""What newcomers do wrong, and a fragment of the one sentence that each of them reads.

A row is a command line and what its sentence must name: the setting, the flag or the file to
change, or what may have been meant. `{name}` is one of `places` in test_mistakes.py. A kind of
mistake has one row.
"""

TRAIN = "train --gin_file={tiny} --workdir={new}"
FILES = "train --workdir={new} --gin_file"
AGAIN = "train --gin_file={run}/config.gin --workdir={run}"
PREPARE = "data prepare --tokenizer={tokenizer} --sequence_length=16 --output={new}"
SWEEP = "sweep --gin_file={tiny} --workdir={new}"
LAUNCH = "--name=hyla --project=p --zone=z --gin_file=gin/quickstart.gin --workdir=gs://b/r"
# Given as --gin.ROW beside a run that would train.
SETTINGS: list[tuple[str, str]] = [
    ("ModelConfig.num_layer=1", "did you mean ModelConfig.num_layers?"),
    ("Modelconfig.num_layers=1", "did you mean ModelConfig?"),
    ("TrainConfig.learning_rate=1", "did you mean OptimizerConfig.learning_rate?"),
    ("TrainConfig.lr=1", "hyla-lm describe TrainConfig lists them"),
    ("ModelConfig.attention=softmax,linaer", "'linaer' must be one of"),
    ("ModelConfig.attention=softmax,hyla,linear", "num_layers = 1"),
    ("ModelConfig.attention_implementation=flash", "'reference', 'blocked'"),
    ("ModelConfig.attention_implementation=pallas_tpu", "'auto' or 'blocked'"),
    ("ModelConfig.num_layers=softmax", "softmax is given but int is wanted"),
    ("ModelConfig.num_layers=-2", "num_layers = -2 must be at least 1"),
    ("ModelConfig.remat=yes", "yes is given but bool is wanted"),
    ("LanguageModel.data=@Rows", "write @Rows()"),
    ("LanguageModel.data=@Rowz()", "there is no class 'Rowz'; did you mean Rows?"),
    ("LanguageModel.data=None", "LanguageModel.data is not set: add a gin file"),
    ("TrainConfig.task=None", "TrainConfig.task is not set"),
    ("TrainConfig.batch_size=100000", "TrainConfig.batch_size"),
    ("LanguageModel.validation_sets=books", "'books=rows/books'"),
    ("LanguageModel.validation_sets=a={rows}/no", "no/manifest.json does not exist"),
    (
        "LanguageModel.samples=2 --gin.LanguageModel.closing_prompt=None",
        "set LanguageModel.closing_prompt, or samples to 0",
    ),
    (
        "OptimizerConfig.warmup_steps=99",
        "--gin.OptimizerConfig.warmup_steps=1, or --gin.TrainConfig.steps=990",
    ),
    ("OptimizerConfig.cosine_begins=99", "OptimizerConfig.cosine_begins"),
    ("OptimizerConfig.decay_share=0.1", "goes with OptimizerConfig.schedule ="),
    ("ModelConfig.head_dim=7", "ModelConfig.head_dim = 7"),
    ("ModelConfig.num_kv_heads=1", "ModelConfig.attention = 'hyla'"),
    ("ModelConfig.base_head_dim=4", "needs ModelConfig.base_width"),
    (
        "ModelConfig.base_width=8 --gin.OptimizerConfig.optimizer=muon",
        "'muon' has no rules for ModelConfig.base_width",
    ),
    ("TrainConfig.profile=1,x", "1,x is given but"),
    ("Rows.train={new}", "{new}/manifest.json does not exist"),
    ("Rows.tokenizer={new}", "{new}"),
    ("Rows.tokenizer={empty}", "{empty}"),
    ("LanguageModel.data=@RowMixture()", "RowMixture.rows is not set"),
    (
        "LanguageModel.data=@RowMixture() --gin.RowMixture.rows=(@Rows(),)",
        "RowMixture has 1 rows, 0 names and 0 weights",
    ),
    ("WarmStart.run={empty}", "WarmStart.run = '{empty}' has no"),
]
LINES: dict[str, list[tuple[str, str]]] = {
    "hyla-lm": [
        ("", "arguments are required: COMMAND"),
        ("trian --workdir={new}", "invalid choice: 'trian' (choose from 'train'"),
    ],
    "flags": [
        ("train", "arguments are required: --workdir"),
        ("train --workdir={new} --gin_flie={tiny}", "did you mean --gin_file?"),
        (TRAIN + " --steps=100", "write --gin.TrainConfig.steps=100"),
        (TRAIN + " --batch-size 4", "write --gin.TrainConfig.batch_size=4"),
        (TRAIN + " --num_layer=4", "write --gin.ModelConfig.num_layers=4"),
        ("compare {run} --steps=3", "--steps=3 is unknown"),
        ("train {tiny} --workdir={new}", "write --gin_file={tiny}"),
        ("sample --workdir={run} --prompt=Once there is", "put a value that has spaces in quotes"),
        (TRAIN + " --gin ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " ModelConfig.num_layers=1", "write --gin.ModelConfig.num_layers=1"),
        (TRAIN + " --gin.ModelConfig.num_layers 1", "write --gin.ModelConfig.num_layers=VALUE"),
        (TRAIN + " '--gin.import nonsense'", "No module named 'nonsense'"),
    ],
    "gin files": [
        ("train --workdir={new}", "such as --gin_file=gin/quickstart.gin"),
        (FILES + "=/nope.gin", "--gin_file=/nope.gin does not exist"),
        (FILES + "={binary}", "{binary}"),
        (FILES + "={empty}", "TrainConfig.task is not set"),
        (FILES + "={open}", "{open}: "),
        (FILES + "={cycle}", "take an include out of {circle}."),
        (FILES + "={including}", "include gin/quickstrat.gin does not exist; did you mean gin/q"),
        (FILES + "=gin/c4_rows.gin", "add a gin file that does"),
        (FILES + "=gin/c4_50m_hyla.gin", "such as gin/c4_rows.gin"),
        (FILES + "=gin/c4_50m_hyla.gin --gin_file=gin/c4_stream.gin", "C4Stream.train is not set"),
        (FILES + "=gin/own_text.gin --gin.ROWS={new}", "{new}"),
        (
            FILES + "=gin/evals/fuzzy_logic_strict.gin --gin.ModelConfig.logit_soft_cap=30.0",
            "logit_soft_cap = 30.0 caps logits over a vocabulary",
        ),
    ],
    "workdirs": [
        ("train --gin_file={tiny} --workdir={empty}/run", "--workdir={empty}/run"),
        ("train --gin_file={tiny} --workdir={folder}", "--workdir={folder} holds 'notes.txt'"),
        ("train --gin_file={tiny} --workdir={run}", "{run}"),
        ("train --gin_file={tiny} --workdir=s3://bucket/run", "gs://"),
        (AGAIN + " --step=1", "step 1"),
        (
            AGAIN + " --gin.TrainConfig.steps=1 --gin.OptimizerConfig.warmup_steps=0",
            "TrainConfig.steps = 1",
        ),
    ],
    "evaluate": [
        ("evaluate --workdir={new}", "{new} holds no run"),
        ("evaluate --workdir={run}/checkpoints", "{run}/checkpoints holds no run: give {run}."),
        ("sample --workdir={run}/checkpoints/12 --prompt=a", "holds no run: give {run}."),
        ("score --workdir={run}/.. --text=a", "holds no run: give {run}/../"),
        ("evaluate --workdir=", "workdir is empty: give a folder"),
        ("evaluate --workdir={started}", "no checkpoint"),
        ("evaluate --workdir={run} --step=-1", "step -1"),
        ("evaluate --workdir={run} --gin_file={tiny}", "{run}"),
        ("evaluate --workdir={run} --follow --step=1", "leave --step out"),
    ],
    "sample and score": [
        ("sample --workdir={run} --prompt=a --samples=0", "--samples=0 must be at least 1"),
        ("sample --workdir={run} --prompt=\udcff", "--prompt is not UTF-8"),
        ("sample --workdir={run} --prompt=- --prompt=-", "--prompt=-"),
        ("sample --workdir={run} --prompts_file=/dev/null", "--prompts_file=/dev/null is empty"),
        ("sample --workdir={run} --prompts_file={new}", "--prompts_file={new} cannot be read"),
        ("score --workdir={run} --text=a --input={prose}", "give one of them"),
        ("score --workdir={run} --text=", "--text has no text to score"),
    ],
    "export": [
        ("export --workdir={run} --output={folder}", "--output={folder} is not empty"),
    ],
    "sweep": [
        ("sweep --gin_file={tiny} --workdir={run}", "{run} is the folder of a run"),
        (SWEEP + " --over TrainConfig.steps", "write --over TrainConfig.steps=VALUE"),
        (SWEEP + " --over TrainConfig.steps=3,,4", "nothing is given but int is wanted"),
        (SWEEP + " --over ModelConfig.attention=hyla,sofmax", "point attention=sofmax: "),
        (SWEEP + " --over TrainConfig.seed=1,2", "TrainConfig.seed is set twice"),
        (SWEEP + " --over TrainConfig.steps=3,3", "point steps=3 twice: leave one out"),
        (SWEEP + " --seeds=0", "--seeds=0 must be at least 1"),
    ],
    "inspect": [
        ("inspect {run} --step=7", "step 7"),
        ("inspect {run}/checkpoints", "{run}/checkpoints has no checkpoints: give {run}."),
    ],
    "compare": [
        ("compare {run}", "at least two runs"),
        ("compare {run} {copy}", "{copy} have one configuration and one seed: give one"),
        ("compare {run} {started}", "{started} has no losses by document"),
        ("compare {run} {other_rows}", "{other_rows} and {run} differ in their validation rows"),
        ("compare {run} {copy} --at=step", "--at=step must be one of 'steps'"),
        ("compare {run} {copy} --set=prose", "has no validation set 'prose'"),
        ("compare {run} {narrow} --baseline={new}", "--baseline={new} is none of the runs"),
    ],
    "coordcheck and plan": [
        ("coordcheck --gin_file={tiny} --widths=16,wide", "--widths=16,wide"),
        ("coordcheck --gin_file={tiny} --widths=16,24,33", "at width 33"),
        ("plan --gin_file={tiny} --topology=v5litepod-16", "give one of v5e:1x1, v5e:2x2, "),
    ],
    "describe": [
        ("describe learnin_rate", "did you mean learning_rate?"),
        ("describe xyzzy", "hyla-lm describe lists all"),
    ],
    "data": [
        (PREPARE + " --input={empty}", "empty.gin is of no known format"),
        (PREPARE + " --task=c4_lm", "-m pip install -e '{root}[seqio]'"),
        (PREPARE + " --input={text} --gin.TrainConfig.steps=1", "TrainConfig"),
        ("data prepare --input {prose} --output {new}", "--train_tokenizer"),
        ("data verify {folder}", "{folder}"),
        ("data tokenizer --input={text} --output={new}/a.model --vocab_size=9", "vocab_size"),
    ],
    "evals": [
        ("evals fuzzy_logic --workdir={new} --seeds=a", "a must be different numbers"),
        ("evals fuzzy_logic --workdir={new} --variants=sofmax", "softmax"),
        ("evals report {new}", "{new}"),
    ],
    "tpu": [
        (f"tpu supervise {LAUNCH} --name=Hyla", "--name=Hyla"),
        (f"tpu supervise {LAUNCH} --accelerator-type=v5e-16", "v5litepod-16"),
        (f"tpu supervise {LAUNCH} --repository=r --revision=main --dry-run", "--revision=main"),
        (f"tpu supervise {LAUNCH} --repository=--upload-pack=x --dry-run", "--repository="),
        (f"tpu supervise {LAUNCH} --gin ModelConfig.remat=1", "write --gin.ModelConfig.remat=1"),
        ("tpu supervise @{new}", "@{new} cannot be read"),
    ],
}
MISTAKES = [(f"{TRAIN} --gin.{row}", said) for row, said in SETTINGS]
MISTAKES += [row for rows in LINES.values() for row in rows]
