"""What gcloud says when something is wrong, in words found in public where they are known."""

_CREATE = "ERROR: (gcloud.compute.tpus.queued-resources.create) "
_DESCRIBE = "ERROR: (gcloud.compute.tpus.queued-resources.describe) "
_SIGN_IN = "\nPlease run:\n\n  $ gcloud auth login\n\nto obtain new credentials.\n"
_READ = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'"
_WRITE = _READ.replace("Read", "Write")
_BILLING = "This API method requires billing to be enabled. Please enable billing on project #1"
_API_OFF = "Cloud TPU API has not been used in project 1 before or it is disabled, then retry."

FINAL = {
    "signed_out": f"{_DESCRIBE}You do not currently have an active account selected.{_SIGN_IN}",
    "revoked": f"{_DESCRIBE}There was a problem refreshing your current auth tokens: "
    f"('invalid_grant: Token has been expired or revoked.'){_SIGN_IN}",
    "billing_off": f"{_CREATE}PERMISSION_DENIED: {_BILLING}",
    "api_off": f"{_CREATE}PERMISSION_DENIED: {_API_OFF}",
    "no_project": f"{_DESCRIBE}PERMISSION_DENIED: Project 'my-projetc' not found or denied.",
    "no_zone": f"{_DESCRIBE}NOT_FOUND: Location us-wset4-a is not found or is unauthorized.",
    "no_type": f"{_CREATE}NOT_FOUND: Accelerator type v5litepod-16 is not found in zone z.",
    "no_network": f"{_CREATE}NOT_FOUND: Resource 'projects/p/global/networks/vpc' was not found",
    "denied": f"{_CREATE}PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied on 'x'",
    "invalid": f"{_CREATE}INVALID_ARGUMENT: Cloud TPU received an invalid argument.",
    "old_gcloud": "ERROR: (gcloud.compute.tpus) Invalid choice: 'queued-resources'.",
    "taken": f"{_CREATE}ALREADY_EXISTS: Resource 'x' already exists",
    "no_quota": f"{_CREATE}RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepod' has been exceeded. "
    "Limit: 0 in zone us-west4-a.",
}
PASSING = {
    "read_rate": f"{_DESCRIBE}RESOURCE_EXHAUSTED: {_READ} of service 'tpu.googleapis.com'.",
    "write_rate": f"{_CREATE}RESOURCE_EXHAUSTED: {_WRITE} of service 'tpu.googleapis.com'.",
    "unavailable": f"{_DESCRIBE}UNAVAILABLE: The service is currently unavailable.",
    "offline": f"{_DESCRIBE}There was a problem refreshing your current auth tokens: "
    "HTTPSConnectionPool(host='oauth2.googleapis.com', port=443): Max retries exceeded with url: "
    f"/token (Caused by NameResolutionError){_SIGN_IN}",
    "no_capacity": f'{_CREATE}{{\n  "code": 8,\n  "message": "There is no more capacity in the '
    'zone \\"us-west4-a\\"; you can try in another zone"\n}\n',
    "retriable": f"{_CREATE}INVALID_ARGUMENT: The operation could not be started; try again.",
    "unknown": f"{_CREATE}INTERNAL: boom\n",
}
BUSY = (
    "ERROR: (gcloud.compute.tpus.queued-resources.delete) FAILED_PRECONDITION: delete is not "
    "supported while in state PROVISIONING\n"
)
NOT_THERE = f"{_DESCRIBE}NOT_FOUND: Resource 'projects/p/locations/z/hyla' was not found\n"
PREEMPTED = 'ERROR: (gcloud.compute.tpus.tpu-vm.ssh) This TPU has terminal state "PREEMPTED".\n'
# Of a command that fails on a host gcloud says only its status; it tries a silent host again.
PIP_FAILED = """ERROR: No matching distribution found for uv
##### Command execution on worker 2 failed with exit status 1. Continuing.
"""
HOST_AWAY = """SSH: Attempting to connect to worker 0...
SSH: Attempting to connect to worker 1...
Retrying: SSH command error: [/usr/bin/ssh] exited with return code [255].
SSH: Attempting to connect to worker 1...
ERROR: (gcloud.compute.tpus.tpu-vm.ssh) [/usr/bin/ssh] exited with return code [255].
"""
NO_HOST = "ERROR: (gcloud.compute.tpus.tpu-vm.ssh) [/usr/bin/ssh] exited with return code [255].\n"
