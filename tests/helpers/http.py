"""HTTP requests without a context for TLS, for which httpx reads all certificates at every request."""

from functools import partial

import httpx

get = partial(httpx.get, verify=False)
head = partial(httpx.head, verify=False)
post = partial(httpx.post, verify=False)
request = partial(httpx.request, verify=False)
stream = partial(httpx.stream, verify=False)
