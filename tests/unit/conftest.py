"""Properties hold for every example; how long one takes says only how busy the machine is.

Hypothesis fails an example that takes over 0.2 s, as now and then one does beside other tests.
"""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
