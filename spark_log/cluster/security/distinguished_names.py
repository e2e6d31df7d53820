"""Writes the name in a client's certificate as Kafka's default principal builder does (RFC 2253). Pure."""

from collections.abc import Sequence

Subject = Sequence[Sequence[tuple[str, str]]]
"""The subject that `ssl.SSLSocket.getpeercert()` returns: relative names in the order of the certificate."""

_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""The keywords of RFC 2253. Other attributes keep OpenSSL's name, while Java writes their OID and encoded value."""


def distinguished_name(subject: Subject) -> str:
    """Return `CN=anna,OU=Sales,O=Shop` for the subject O=Shop, OU=Sales, CN=anna: the order is reversed."""
    return ",".join(
        "+".join(f"{_KEYWORDS.get(name, name)}={_escaped(value)}" for name, value in relative)
        for relative in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{character}" if character in ',+"\\<>;' else character for character in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text
