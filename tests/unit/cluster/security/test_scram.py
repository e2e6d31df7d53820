"""SCRAM with the example of RFC 7677, and with damaged messages."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_log.cluster.security import scram
from spark_log.cluster.security.scram import ITERATIONS_MIN, Credential, Mechanism, ScramError

SHA_256 = Mechanism.SCRAM_SHA_256
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def of_password(password, mechanism=SHA_256, salt=SALT):
    salted = scram.salted_password(password, mechanism, salt, ITERATIONS_MIN)
    return scram.credential_of(salted, mechanism, salt, ITERATIONS_MIN)


PENCIL = of_password("pencil")
CHALLENGE = scram.server_first(scram.parse_client_first(FIRST), SERVER_NONCE, PENCIL)


def final(message, credential=PENCIL):
    return scram.server_final(scram.parse_client_first(FIRST), CHALLENGE, message, SHA_256, credential)


def test_example_of_rfc_7677():
    assert CHALLENGE == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert final(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert final(FINAL, of_password("pencils")) is None


@pytest.mark.parametrize("mechanism", Mechanism)
def test_password_is_recognised(mechanism):
    credential = of_password("pässword", mechanism)
    assert scram.is_password("pässword", mechanism, credential)
    assert not scram.is_password("password", mechanism, credential)


def test_commas_and_equals_signs_in_names():
    assert scram.parse_client_first(b"n,,n=a=2Cb=3Dc,r=x").user == "a,b=c"


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"p=tls-unique,,n=user,r=x", b"n,,n=,r=x", b"n,,n=a=b,r=x", b"n,,n=user,r=", b"n,,m=x,n=user,r=x",
     b"n,a=other,n=user,r=x", b"n,,n=\xff,r=x", b"n,,n=user,r=x\x00y"],
)  # fmt: skip
def test_client_first_that_is_refused(message):
    with pytest.raises(ScramError):
        scram.parse_client_first(message)


@pytest.mark.parametrize(
    "message",
    [b"", b",p=", FINAL.replace(b"biws", b"eSws"), FINAL.replace(b"rOpr", b"rOps"), FINAL[:-4], FINAL[:-1] + b"*",
     FINAL.partition(b",p=")[0]],
)  # fmt: skip
def test_client_final_that_is_refused(message):
    with pytest.raises(ScramError):
        final(message)


@given(st.binary(max_size=80), st.integers(0, len(FINAL)))
@example(b"", len(FINAL))
def test_damaged_messages_raise_nothing_else_and_prove_nothing(noise, at):
    for message in (noise, FINAL[:at] + noise, noise + FINAL[at:], FINAL[:at] + noise + FINAL[at:]):
        try:
            proof = final(message)
        except ScramError:
            continue
        assert proof is None or message == FINAL
    for message in (noise, FIRST[: at % len(FIRST)] + noise, noise + FIRST):
        try:
            scram.parse_client_first(message)
        except ScramError:
            continue


def test_unknown_users_always_get_the_same_salt_which_the_secret_decides():
    one = scram.made_up_credential(b"secret", "anna", SHA_256)
    assert scram.made_up_credential(b"secret", "anna", SHA_256) == one
    others = [(b"other", "anna", SHA_256), (b"secret", "ben", SHA_256), (b"secret", "anna", Mechanism.SCRAM_SHA_512)]
    assert len({one.salt, *(scram.made_up_credential(*each).salt for each in others)}) == 4
    assert (len(one.salt), one.iterations) == (scram.SALT_BYTES, ITERATIONS_MIN)


def test_knowing_the_stored_key_is_not_enough():
    said = b",".join((FIRST[3:], CHALLENGE, FINAL.partition(b",p=")[0]))
    signature = hmac.digest(PENCIL.stored_key, said, "sha256")
    assert final(FINAL.partition(b",p=")[0] + b",p=" + base64.b64encode(signature)) is None


def test_repr_of_a_credential_shows_no_key():
    assert repr(PENCIL) == "Credential(iterations=4096)"
    assert isinstance(PENCIL, Credential)
    assert hashlib.sha256().digest_size == len(PENCIL.stored_key)
