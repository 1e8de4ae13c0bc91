"""``foreload serve``: a live page about the published loaders of this machine.

- ``app.py``: what answers at which path, and the server
- ``guard.py``: who is answered
- ``watch.py``: looks at what is published, and tells all viewers
- ``seen.py``: what was seen of one loader: rates, and the verdict
- ``trial.py``: the benchmark that the page can start
- ``page/``: the page itself; its plots are drawn by the script that comes with plotly
"""
