"""The cache of ACLs."""

import asyncio
from types import SimpleNamespace

from spark_log.gateway.access.access import Authorizer


def test_acls_that_change_while_they_are_read_are_read_again():
    async def story():
        reads = []

        async def call(_read):
            reads.append(1)
            if len(reads) == 1:
                authorizer.forget()
            return ()

        authorizer = Authorizer(SimpleNamespace(), call, frozenset(), everyone=False)
        for _ in range(3):
            await authorizer.access("User:ann", "127.0.0.1")
        assert len(reads) == 2

    asyncio.run(story())
