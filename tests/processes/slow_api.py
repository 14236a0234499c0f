"""A server whose requests do their work, print a line and then take their time, as on a busy machine.

``START`` is the Python that starts it; ``MESHWRIGHT_SLOW_S`` in its environment says how long.
"""

START = """import os, time
from functools import partial
from meshwright.service.api.routes import predictions, reports
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.serving.serve import leave, serve
from meshwright.service.settings import Settings
from meshwright.service.stores.definitions import Definitions
from meshwright.service.stores.measurements import Measurements
from meshwright.service.stores.profiles import ProfileStore
from meshwright.service.stores.replans import Replans
from meshwright.service.stores.shares import ShareLinks

def slowly(owner, name):
    plain = getattr(owner, name)
    def slow(*given, **named):
        made = plain(*given, **named)
        print(name, flush=True)
        time.sleep(float(os.environ["MESHWRIGHT_SLOW_S"]))
        return made
    setattr(owner, name, slow)

for owner, name in (
    (reports, "page_of_job"), (Jobs, "submit"), (Jobs, "page"), (Definitions, "put"), (Measurements, "add"),
    (ProfileStore, "add"), (Replans, "keep"), (ShareLinks, "create"), (predictions, "prediction_of"),
):
    slowly(owner, name)
serve(Settings(), on_ready=partial(print, flush=True))
leave()"""
