"""A job on Cloud TPU as a frozen dataclass, checked on construction."""

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hyla_lm.errors import UserError

SLICES = tuple(f"v5litepod-{chips}" for chips in (1, 4, 8, 16, 32, 64, 128, 256))
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
COMMIT = re.compile(r"[0-9a-f]{40}")
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
class Job:
    """A slice of TPUs and the training on it; queued resource and node share the name.

    The fields are the options of the launcher, and the bindings of gin.
    """

    name: str
    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    spot: bool
    reserved: bool
    network: str
    subnetwork: str
    service_account: str
    internal_ips: bool
    slices: int
    repository: str
    revision: str
    gin_file: Sequence[str]
    workdir: str
    env: Sequence[str]
    bindings: Sequence[str]

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
        pairs = [(f"--{name.replace('_', '-')}", value) for name, value in vars(self).items()]
        pairs += [("--gin_file", name) for name in self.gin_file]
        for flag, value in pairs:
            if isinstance(value, str) and (value.startswith("-") or not value.isprintable()):
                raise UserError(
                    f"{flag}={hide(value)!r} begins with - or has a line break, so git, gcloud or "
                    "a shell would read it as something else: change it."
                )

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes, one a slice."""
        return [self.name] if self.slices == 1 else [f"{self.name}-{i}" for i in range(self.slices)]

    @property
    def hosts_of_slice(self) -> int:
        """The machines of a slice: one for up to eight chips, else one for every four chips."""
        chips = int(self.accelerator_type.rpartition("-")[2])
        return 1 if chips <= 8 else chips // 4

    @property
    def hosts(self) -> int:
        """The number of machines of all slices."""
        return self.slices * self.hosts_of_slice

    def hide(self, text: str) -> str:
        """The text without the secrets of the job."""
        variables = [variable.partition("=") for variable in self.env]
        secrets = [value for name, _, value in variables if value and SECRET.search(name.upper())]
        logins = LOGIN.findall(self.repository)
        passwords = [login.rpartition(":")[2] for login in logins]
        return hide(text, [*secrets, *logins, *passwords])

    def without_secrets(self) -> "Job":
        """The same job, to be printed."""
        env = [self.hide(variable) for variable in self.env]
        return dataclasses.replace(self, repository=self.hide(self.repository), env=env)

    def check_run(self) -> None:
        """Raises UserError unless the job has a training command and one version of the code."""
        configs = "those of a model and its data, such as gin/c4_50m_hyla.gin and gin/c4_rows.gin"
        for flag, value, remedy in (
            ("--workdir", self.workdir, "a folder that every host sees, gs://BUCKET/runs/NAME"),
            ("--gin_file", self.gin_file, configs),
            ("--repository", self.repository, "one that the hosts can read with git"),
        ):
            if not value:
                raise UserError(f"{flag} is missing: give {remedy}.")
        if not all(VARIABLE.fullmatch(variable) for variable in self.env):
            raise UserError("--env must be NAME=VALUE, with a name of letters, digits and _.")
        if not COMMIT.fullmatch(self.revision):
            raise UserError(
                f"--revision={self.revision} must be a whole commit, so that all hosts run the "
                "same code: git rev-parse gives its 40 digits."
            )
