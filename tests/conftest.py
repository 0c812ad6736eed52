"""What all tests share: kernels compile at their first call, so no example has a deadline."""

from hypothesis import settings

settings.register_profile("sediment", deadline=None)
settings.load_profile("sediment")
