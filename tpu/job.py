"""A job on Cloud TPU as a frozen dataclass, checked on construction."""

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass

from hyla_lm.errors import UserError

CHIPS = (1, 4, 8, 16, 32, 64, 128, 256)  # of the slices of v5litepod
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
COMMIT = re.compile(r"[0-9a-f]{40}")
ACCELERATOR = re.compile(r"v5litepod-([1-9]\d*)")
VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
LOGIN = re.compile(r"(?<=://)[^/\s]+(?=@)")
ASSIGNED = re.compile(r"(\w*(?:KEY|TOKEN|SECRET|PASSWORD)\w*=)\S+")
HIDDEN = "***"


def hide(text: str, secrets: Collection[str] = ()) -> str:
    """The text without these secrets, logins in addresses, and values of names such as HF_TOKEN.

    A secret of a few characters is hidden where it stands as a word, since it may be in any word.
    """
    for secret in secrets:
        pattern = re.escape(secret)
        text = re.sub(pattern if len(secret) >= 6 else rf"(?<!\w){pattern}(?!\w)", HIDDEN, text)
    return ASSIGNED.sub(rf"\1{HIDDEN}", LOGIN.sub(HIDDEN, text))


@dataclass(frozen=True)
class Slice:
    """A v5e slice, such as v5litepod-16; raises UserError for one that is not offered."""

    accelerator: str

    def __post_init__(self) -> None:
        match = ACCELERATOR.fullmatch(self.accelerator)
        if match is None or int(match[1]) not in CHIPS:
            sizes = ", ".join(str(size) for size in CHIPS)
            raise UserError(
                f"--accelerator-type={self.accelerator} is not a v5e slice: "
                f"give v5litepod-N with N one of {sizes}."
            )

    @property
    def chips(self) -> int:
        return int(self.accelerator.removeprefix("v5litepod-"))

    @property
    def hosts(self) -> int:
        """The number of machines: one for up to eight chips, else one for every four chips."""
        return 1 if self.chips <= 8 else self.chips // 4


@dataclass(frozen=True)
class Training:
    """The trainer's command line."""

    workdir: str = ""
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises UserError for a command that cannot train."""
        if not self.workdir:
            raise UserError(
                "--workdir is missing: give a folder that every host sees, gs://BUCKET/runs/NAME."
            )
        if not self.gin_files:
            raise UserError(
                "--gin_file is missing: give those of a model and its data, such as "
                "gin/c4_50m_hyla.gin and gin/c4_rows.gin."
            )
        for variable in self.environment:
            if not VARIABLE.fullmatch(variable):
                raise UserError("--env must be NAME=VALUE, with a name of letters, digits and _.")

    @property
    def secrets(self) -> list[str]:
        """The values of variables whose names are those of secrets."""
        pairs = [variable.partition("=") for variable in self.environment]
        return [value for name, _, value in pairs if value and SECRET.search(name.upper())]

    def without_secrets(self) -> "Training":
        """The same training, to be printed."""
        names = {variable: variable.partition("=")[0] for variable in self.environment}
        environment = tuple(
            f"{name}={HIDDEN}" if SECRET.search(name.upper()) else variable
            for variable, name in names.items()
        )
        return dataclasses.replace(self, environment=environment)

    def arguments(self) -> list[str]:
        """The arguments after `hyla-lm`."""
        files = [f"--gin_file={name}" for name in self.gin_files]
        bindings = [f"--gin.{binding}" for binding in self.bindings]
        return ["train", *files, f"--workdir={self.workdir}", *bindings]


@dataclass(frozen=True)
class Job:
    """A slice of TPUs and the training on it; queued resource and node share the name.

    The fields are the options of the launcher.
    """

    name: str
    project: str
    zone: str
    accelerator_type: str = "v5litepod-16"
    runtime_version: str = "v2-alpha-tpuv5-lite"
    spot: bool = False
    reserved: bool = False
    network: str = ""
    subnetwork: str = ""
    service_account: str = ""
    internal_ips: bool = False
    tunnel_through_iap: bool = False
    slices: int = 1
    repository: str = ""
    revision: str = ""
    training: Training = Training()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(
                f"--name={self.name} must be at most 40 of a-z, 0-9 and -, begin with a letter and "
                "not end with -."
            )
        for flag, value in (("--project", self.project), ("--zone", self.zone)):
            if not value:
                raise UserError(f"{flag} is missing: give it.")
        if self.slices < 1:
            raise UserError(f"--slices={self.slices} must be 1 or more.")
        Slice(self.accelerator_type)  # raises UserError for one that is not offered
        texts = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        pairs = [*texts.items(), ("--workdir", self.training.workdir)]
        pairs += [("--gin_file", name) for name in self.training.gin_files]
        for flag, value in pairs:
            if isinstance(value, str) and (value.startswith("-") or not value.isprintable()):
                raise UserError(
                    f"{flag}={hide(value)!r} begins with - or has a line break, so git, gcloud or "
                    "a shell would read it as something else: change it."
                )

    @property
    def slice(self) -> Slice:
        """One of its slices; they are all alike."""
        return Slice(self.accelerator_type)

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes, one a slice."""
        return [self.name] if self.slices == 1 else [f"{self.name}-{i}" for i in range(self.slices)]

    @property
    def hosts(self) -> int:
        """The number of machines of all slices."""
        return self.slices * self.slice.hosts

    def hide(self, text: str) -> str:
        """The text without the secrets of the job."""
        logins = LOGIN.findall(self.repository)
        passwords = [login.rpartition(":")[2] for login in logins]
        return hide(text, [*self.training.secrets, *logins, *passwords])

    def without_secrets(self) -> "Job":
        """The same job, to be printed."""
        repository, training = LOGIN.sub(HIDDEN, self.repository), self.training.without_secrets()
        return dataclasses.replace(self, repository=repository, training=training)

    def check_run(self) -> None:
        """Raises UserError unless the job has a training command and one version of the code."""
        self.training.check()
        if not self.repository:
            raise UserError("--repository is missing: give one that the hosts can read with git.")
        if not COMMIT.fullmatch(self.revision):
            raise UserError(
                f"--revision={self.revision} must be a whole commit, so that all hosts run the "
                "same code: git rev-parse gives its 40 digits."
            )
