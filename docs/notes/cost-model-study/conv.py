from lab import *
lpo,lco,lso,lgo,cc=pickle.load(open(CACHE/"base_lpo.pkl","rb"))
pickle.dump((lpo,lco,lso,lgo),open(CACHE/"base_all.pkl","wb")); pickle.dump((lpo,cc),open(CACHE/"base_lpo.pkl","wb"))
