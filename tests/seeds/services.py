"""What document 001 talks to, without a server or a repository: Redis through aioredis, Git through GitPython."""

import types


class Redis:
    """Of a Redis server: streams, sorted sets and published messages."""

    def __init__(self):
        self.streams: dict[str, list[dict]] = {}
        self.sets: dict[str, list[tuple]] = {}
        self.published: list[tuple[str, str]] = []

    async def xadd(self, key, fields):
        self.streams.setdefault(key, []).append(fields)

    async def zadd(self, key, score, member):
        self.sets.setdefault(key, []).append((score, member))

    async def zremrangebyscore(self, key, least, most):
        self.sets[key] = [
            item for item in self.sets.get(key, []) if not (isinstance(item[0], float) and least <= item[0] <= most)
        ]

    async def publish(self, channel, message):
        self.published.append((channel, message))


class aioredis:
    @staticmethod
    async def create_redis_pool(url):
        return Redis()


class Repo:
    """Of git.Repo: checkout, which does nothing here, and the hash of the head."""

    def __init__(self, path):
        self.git = types.SimpleNamespace(checkout=lambda commit: None)
        self.head = types.SimpleNamespace(commit=types.SimpleNamespace(hexsha="0" * 40))
