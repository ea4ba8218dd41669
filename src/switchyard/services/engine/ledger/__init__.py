"""The ledger: the SQL record of every job, worker, dead letter and document."""

from switchyard.services.engine.ledger.ledger import Ledger
from switchyard.services.engine.ledger.sql.codec import to_message
from switchyard.services.engine.ledger.sql.upgrade import upgrade

__all__ = ["Ledger", "to_message", "upgrade"]
