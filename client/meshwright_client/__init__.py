"""The Meshwright service as a launcher calls it."""

from meshwright_client.choosing import Choice, choose
from meshwright_client.client import Client
from meshwright_client.reporting import Reporter

__all__ = ["Choice", "Client", "Reporter", "choose"]
