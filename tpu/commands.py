"""The gcloud commands of a Job and the scripts for its hosts: pure functions, one for each."""

from shlex import join, quote

from hyla_lm.tpu.job import Job

TPUS = ("gcloud", "compute", "tpus")
# Only the alpha track tunnels.
ALPHA_TPUS = ("gcloud", "alpha", "compute", "tpus")
HOME = "$HOME/hyla_lm"
# For the slowest install; the steps of INSTALL have limits of their own, on the host.
INSTALL_SECONDS = 3600.0
# A connection that is silent for a minute is given up; without these ssh waits for hours.
KEEP_ALIVE = ("ServerAliveInterval=15", "ServerAliveCountMax=4", "ConnectTimeout=30")
# Without this JAX falls back to the CPU where the TPU cannot be opened, and trains there.
ENVIRONMENT = "JAX_PLATFORMS=tpu,cpu"
INSTALL = """code={code}; mkdir -p "$code" && exec 9> "$code.lock" && flock -w 1800 9 && \
if [ -e "$code/ready" ]; then exit 0; fi && rm -rf "$code" && mkdir -p "$code/src" && \
git init --quiet "$code/src" && \
timeout 300 git -C "$code/src" fetch --quiet --depth 1 -- {repository} {revision} && \
git -C "$code/src" checkout --quiet FETCH_HEAD && \
timeout 300 python3 -m pip install --quiet --user uv && \
timeout 300 python3 -m uv venv --quiet --python 3.12 "$code/venv" && \
timeout 900 python3 -m uv pip install --quiet --python "$code/venv/bin/python" \
--editable "$code/src[tpu,gcs]" && touch "$code/ready\""""


def place(job: Job) -> list[str]:
    """Where the slice is."""
    return [f"--project={job.project}", f"--zone={job.zone}", "--quiet"]


def create(job: Job) -> list[str]:
    """Requests the slice; ends when the request is queued."""
    options = {
        "--network": job.network,
        "--subnetwork": job.subnetwork,
        "--service-account": job.service_account,
    }
    if job.slices == 1:
        nodes = [f"--node-id={job.name}"]
    else:
        nodes = [f"--node-count={job.slices}", f"--node-prefix={job.name}"]
    return [
        *(*TPUS, "queued-resources", "create", job.name),
        *nodes,
        f"--accelerator-type={job.accelerator_type}",
        f"--runtime-version={job.runtime_version}",
        *(["--spot"] if job.spot else ["--reserved"] if job.reserved else []),
        *[f"{flag}={value}" for flag, value in options.items() if value],
        *(["--internal-ips"] if job.internal_ips else []),
        *place(job),
    ]


def describe_resource(job: Job) -> list[str]:
    return [*TPUS, "queued-resources", "describe", job.name, *place(job), "--format=json"]


def describe_node(job: Job, node: str) -> list[str]:
    return [*TPUS, "tpu-vm", "describe", node, *place(job), "--format=json"]


def delete_resource(job: Job) -> list[str]:
    """Deletes the request and the node that belongs to it."""
    return [*TPUS, "queued-resources", "delete", job.name, "--force", *place(job)]


def delete_node(job: Job, node: str) -> list[str]:
    """Deletes a node whose request is gone."""
    return [*TPUS, "tpu-vm", "delete", node, *place(job)]


def ssh(job: Job, script: str, worker: str = "all") -> list[list[str]]:
    """The commands that run a shell script on all workers, or on one; one command a slice.

    The workers are counted through all slices.
    """
    tpus = ALPHA_TPUS if job.internal_ips else TPUS
    route = ["--tunnel-through-iap"] if job.internal_ips else []
    alive = [f"--ssh-flag=-o{option}" for option in KEEP_ALIVE]
    flags = [*route, *alive, *place(job), f"--command={script}"]
    if worker == "all":
        targets = [(node, worker) for node in job.nodes]
    else:
        index, host = divmod(int(worker), job.hosts_of_slice)
        targets = [(job.nodes[index], str(host))]
    return [[*tpus, "tpu-vm", "ssh", node, f"--worker={host}", *flags] for node, host in targets]


def code_folder(job: Job) -> str:
    """The folder of a version of the package on the hosts; each version has its own."""
    return f"{HOME}/code/{job.revision[:12]}"


def install(job: Job) -> str:
    """Installs the package, unless it is installed."""
    repository, revision = quote(job.repository), quote(job.revision)
    return INSTALL.format(code=code_folder(job), repository=repository, revision=revision)


def start(job: Job) -> str:
    """Starts the trainer in the background, unless it is running."""
    files = [f"--gin_file={name}" for name in job.gin_file]
    bindings = [f"--gin.{binding}" for binding in job.bindings]
    train = join(["train", *files, f"--workdir={job.workdir}", *bindings])
    return (
        f'cd "{code_folder(job)}/src" && '
        f'"../venv/bin/python" -m hyla_lm.tpu.worker start "{HOME}/jobs/{job.name}" '
        f"--workdir={quote(job.workdir)} -- env {join([ENVIRONMENT, *job.env])} "
        f'"{code_folder(job)}/venv/bin/hyla-lm" {train}'
    )


def trainer_status(job: Job) -> str:
    """Prints one line of JSON about the trainer, even if nothing is installed."""
    return _worker(job, "status", "echo '{}'")


def stop(job: Job) -> str:
    """Ends the trainer with SIGTERM, then with SIGKILL if it is still running."""
    return _worker(job, "stop", "true")


def _worker(job: Job, verb: str, otherwise: str) -> str:
    """Runs the version of tpu.worker that started the trainer."""
    folder = f"{HOME}/jobs/{job.name}"
    call = f'"{folder}/worker" {verb} "{folder}"'
    return f'if [ -x "{folder}/worker" ]; then {call}; else {otherwise}; fi'


def tail(job: Job, lines: int, follow: bool) -> str:
    how = f"-n {lines} -F" if follow else f"-n {lines}"
    return f'tail {how} "{HOME}/jobs/{job.name}/log"'
