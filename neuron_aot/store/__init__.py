"""Write side of the store: blobs before records, records before the bundle, the bundle before the ref.

blob      first writer wins; an existing one is verified, and healed when damaged
program   first writer wins; the loser adopts the winner's artifact and the difference is reported
request   first writer wins
bundle    only when all of it is there and verified
ref       the only thing that moves, at one stroke
"""

from .store import Store, Stored, open_existing, open_store
from .streams import parallel

__all__ = ["Store", "Stored", "open_existing", "open_store", "parallel"]
