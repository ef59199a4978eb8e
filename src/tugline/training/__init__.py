"""Everything a trainer needs: the pilot policy here, adapters to training libraries beside it."""
