"""How two processes prove that they know HYLA_LM_JOIN_SECRET, without sending it.

Each proof covers the hello and a nonce of each side, so that none can be used twice. What is said
after the join is neither signed nor hidden.
"""

import hashlib
import hmac
import json
import secrets

from hyla_lm.parallel.messages import Message

VARIABLE = "HYLA_LM_JOIN_SECRET"


def nonce() -> str:
    return secrets.token_hex(32)


def proof(secret: str, prover: str, hello: Message, challenge: str) -> str:
    """What `prover`, "first" or "other", sends; `hello` and `challenge` hold the nonces."""
    said = json.dumps([prover, hello, challenge], sort_keys=True).encode()
    key = secret.encode("utf-8", "surrogateescape")
    return hmac.new(key, said, hashlib.sha256).hexdigest()


def is_proof(given: object, expected: str) -> bool:
    """Whether they are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(str(given).encode("utf-8", "surrogatepass"), expected.encode())
