# What a person does with kubectl, command by command. Each command runs on both servers and both must say the same.
# By hand, in this folder: KUBECONFIG=… sh script.sh
#
# A comment before a command may say how far it may differ:
#   differs: why      the two answer differently, on purpose
#   fewer: why        the embedded server says some of the real one's lines, and no others
#   unordered: why    the order of lines is not promised

## The server
# differs: each says its own version
kubectl version
kubectl get --raw /readyz
kubectl get --raw /livez/ping
kubectl api-versions | grep -E '^(v1|apps/v1|batch/v1|policy/v1|rbac.authorization.k8s.io/v1)$'
# fewer: kinds that are not supported are not in discovery
kubectl api-versions
# fewer: kinds that are not supported are not in discovery
kubectl api-resources
kubectl api-resources --api-group=apps -o wide
kubectl api-resources --api-group=batch -o wide
kubectl api-resources --api-group=rbac.authorization.k8s.io -o wide
kubectl api-resources --api-group=coordination.k8s.io -o name
kubectl api-resources --categories=api-extensions --api-group=apiextensions.k8s.io
kubectl auth whoami
kubectl get namespaces
kubectl get serviceaccounts,configmaps -n kube-public
kubectl get something
kubectl get --raw /apis/nothing.example/v1/things

## A namespace
kubectl create namespace shop
kubectl create namespace shop
kubectl config set-context --current --namespace=shop
until kubectl get serviceaccount/default configmap/kube-root-ca.crt >/dev/null 2>&1; do sleep 0.2; done
kubectl get serviceaccount default -o yaml
kubectl get namespace shop -o yaml
# differs: limit ranges are not supported, so nothing is said about them
kubectl describe namespace shop

## Apply
kubectl diff -f web.yaml
kubectl apply -f web.yaml --dry-run=server
kubectl apply -f web.yaml
kubectl apply -f web.yaml
kubectl diff -f web.yaml
kubectl diff -f web-changed.yaml
kubectl apply -f web-changed.yaml
kubectl apply view-last-applied configmap/settings
kubectl get configmap settings -o yaml --show-managed-fields
kubectl get deployment web -o yaml --show-managed-fields
kubectl get service web -o yaml
kubectl apply -k kustom
kubectl get services,configmaps -l size=big --show-labels
kubectl apply -k kustom --prune -l size=big --prune-allowlist=core/v1/ConfigMap
kubectl delete -k kustom
kubectl apply -f invalid.yaml
kubectl apply -f unknown-field.yaml
kubectl apply -f unknown-field.yaml --validate=warn --dry-run=server
kubectl create -f unknown-field.yaml --validate=strict
kubectl create -f web.yaml
kubectl apply -f web.yaml -n elsewhere

## Get
kubectl get deployments
kubectl get deployments -o wide
kubectl get deployment web -o json
kubectl get deployments -o name
kubectl get deployment web -o jsonpath='{.spec.template.spec.containers[*].image}'
kubectl get deployments -o custom-columns=NAME:.metadata.name,IMAGE:.spec.template.spec.containers[0].image
kubectl get deployment web -o go-template='{{range .spec.template.spec.containers}}{{.name}}{{"\n"}}{{end}}'
kubectl get all
kubectl get services -o wide
kubectl get services -A
kubectl get configmaps -l app=web
kubectl get configmaps -l 'app in (web, db), !tier'
kubectl get configmaps --field-selector metadata.name=settings
kubectl get configmaps --field-selector data.colour=blue
kubectl get configmaps -l 'app=('
kubectl get configmaps,services --show-labels --sort-by=.metadata.name
kubectl get deployments -L tier,app
kubectl get deployments --no-headers
kubectl get configmap nothing
kubectl get configmaps nothing settings --ignore-not-found
kubectl get configmaps --chunk-size=1
kubectl get clusterroles --chunk-size=7 -o name
kubectl get clusterrole view -o yaml
kubectl get clusterrolebindings -o wide
kubectl get priorityclasses
kubectl get -f web.yaml
kubectl get --raw /api/v1/namespaces/shop/configmaps/nothing
(sleep 2; kubectl annotate configmap settings seen=yes >/dev/null) & timeout 6 kubectl get configmap settings -w -o jsonpath='{.metadata.annotations.seen}{"\n"}'; wait
timeout 4 kubectl get configmaps settings -w --output-watch-events

## Describe and explain
kubectl describe deployment web
kubectl describe service web --show-events=false
# unordered: kubectl walks through a map
kubectl describe configmap settings
kubectl explain pods
kubectl explain deployment.spec.strategy
kubectl explain pod.spec.containers.ports --recursive
kubectl explain service --recursive
kubectl explain nodes.status.conditions.lastHeartbeatTime
kubectl explain pods.spec.nothing

## Change
kubectl label configmap settings shade=dark
kubectl label configmap settings shade=light
kubectl label configmap settings shade=light --overwrite
kubectl label configmap settings shade-
kubectl label configmap settings 'bad key=1'
kubectl annotate configmap settings note='made by hand'
kubectl annotate configmap settings note-
kubectl annotate configmap settings note=late --resource-version=1
kubectl patch configmap settings -p '{"data":{"size":"4"}}'
kubectl patch configmap settings --type=merge -p '{"data":{"size":null}}'
kubectl patch configmap settings --type=json -p '[{"op":"add","path":"/data/size","value":"5"}]'
kubectl patch configmap settings --type=json -p '[{"op":"test","path":"/data/size","value":"9"}]'
kubectl patch configmap settings --type=json -p '[{"op":"remove","path":"/data/nothing"}]'
kubectl patch configmap settings -p '{"data":{"size":"5"}}'
kubectl patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"registry.example/side:1"}]}}}}'
kubectl patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}'
kubectl patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"image":"nameless"}]}}}}'
kubectl patch deployment web -p '{"spec":{"selector":{"matchLabels":{"app":"other"}}}}'
kubectl patch deployment web --subresource=status --type=merge -p '{"status":{"observedGeneration":1,"replicas":1,"readyReplicas":1,"availableReplicas":1,"updatedReplicas":1,"conditions":[{"type":"Available","status":"True","reason":"Enough","message":"m"}]}}'
kubectl get deployment web
kubectl patch configmap settings -p 'not json'
kubectl scale deployment web --replicas=5
kubectl scale deployment web --replicas=1 --current-replicas=3
kubectl scale deployment web --replicas=-1
kubectl get deployment web --subresource=scale
kubectl set image deployment/web main=registry.example/web:3
kubectl set env deployment/web COLOUR- SHAPE=round
kubectl set resources deployment/web --limits=cpu=1,memory=128Mi
kubectl set serviceaccount deployment web default
kubectl set selector service web app=web,tier=front
kubectl rollout history deployment/web
kubectl rollout pause deployment/web
kubectl rollout pause deployment/web
kubectl rollout resume deployment/web
kubectl rollout restart deployment/web
kubectl rollout status deployment/web --timeout=2s
kubectl get deployment web -o yaml
kubectl get configmap settings -o yaml | sed 's/green/red/' | kubectl replace -f -
kubectl get configmap settings -o yaml | sed 's/resourceVersion: .*/resourceVersion: "1"/; s/red/grey/' | kubectl replace -f -
kubectl replace --force -f web.yaml
# (Entries of managedFields are ordered by their second, so the next write waits for the next one.)
sleep 1; KUBE_EDITOR='sed -i s/blue/violet/' kubectl edit configmap settings
KUBE_EDITOR='true' kubectl edit configmap settings
kubectl get configmap settings -o jsonpath='{.data}'
kubectl autoscale deployment web --max=3 --dry-run=client -o name

## Create
kubectl create configmap tune --from-literal=key=C --from-literal=tempo=slow
kubectl create configmap tune --from-literal=key=C
kubectl create secret generic pass --from-literal=word=sesame
kubectl create secret docker-registry pull --docker-server=registry.example --docker-username=ann --docker-password=x
kubectl get secrets
kubectl get secret pass -o yaml
kubectl describe secret pass
kubectl patch secret pass -p '{"immutable":true}'
kubectl patch secret pass -p '{"stringData":{"word":"other"}}'
kubectl create deployment tiny --image=registry.example/tiny --replicas=2 --port=80
kubectl get deployment tiny -o yaml
kubectl create job once --image=registry.example/job -- echo done
kubectl get job once -o yaml | sed 's/controller-uid: .*/controller-uid: <uid>/'
kubectl create cronjob nightly --image=registry.example/job --schedule='0 3 * * *' -- echo night
kubectl create cronjob wrong --image=registry.example/job --schedule='never'
kubectl create job by-hand --from=cronjob/nightly
kubectl get jobs,cronjobs
kubectl create service clusterip plain --tcp=80:8080
kubectl create service nodeport open --tcp=80
kubectl create service externalname away --external-name=example.com
kubectl get services
kubectl expose deployment tiny --port=90 --target-port=80
kubectl describe service plain --show-events=false
kubectl create role reader2 --verb=get,list --resource=pods,configmaps
kubectl create clusterrole lister --verb=list --resource=nodes
kubectl create rolebinding bob-reads --role=reader2 --user=bob
kubectl create clusterrolebinding bob-lists --clusterrole=lister --user=bob
kubectl describe role reader2
kubectl describe clusterrolebinding bob-lists
kubectl create serviceaccount builder
kubectl create token builder
kubectl create token builder --duration=1s
kubectl create token nobody
kubectl create poddisruptionbudget all --selector=app=web --min-available=50%
kubectl create priorityclass urgent --value=1000 --description=First
kubectl create ingress side --rule='side.example/*=web:80'
kubectl create quota small --hard=pods=1
until [ -n "$(kubectl get quota small -o jsonpath='{.status.hard.pods}')" ]; do sleep 0.2; done; kubectl get quota small
kubectl run lone --image=registry.example/lone --dry-run=server -o yaml
kubectl run lone --image=registry.example/lone --restart=Never --env=A=B --labels=app=lone
kubectl get pod lone -o yaml
kubectl describe pod lone
kubectl get pods
kubectl run second --image=registry.example/second
kubectl describe quota small
kubectl delete pod lone
kubectl delete quota small
kubectl apply -f ingress.yaml -f storage.yaml -f stateful.yaml
kubectl get ingresses,networkpolicies,pv,pvc,sc,sts,ds,pdb
kubectl get ingresses,networkpolicies,pv,pvc,sc,sts,ds,pdb -o wide
kubectl describe ingress front
kubectl describe pvc hold
kubectl scale statefulset store --replicas=2
kubectl create -f event.yaml
# The real server repairs its allocations at times of its own, and tells in events of services.
kubectl get events --field-selector involvedObject.kind=ConfigMap
kubectl events --for configmap/settings
kubectl get events --field-selector involvedObject.name=settings,type=Warning -o name
# unordered: kubectl walks through a map
kubectl describe configmap settings

## Server-side apply
kubectl apply --server-side -f boat.yaml
kubectl apply -f crd.yaml
kubectl wait --for=condition=Established crd/boats.harbour.example --timeout=20s
until kubectl get boats >/dev/null 2>&1; do sleep 0.2; done
kubectl get crd boats.harbour.example -o yaml
until kubectl explain boat.spec.holds 2>/dev/null | grep -q cargo; do sleep 0.5; done; kubectl explain boat.spec.holds
kubectl explain boats --recursive
kubectl api-resources --api-group=harbour.example -o wide
kubectl apply --server-side -f boat.yaml
kubectl apply --server-side -f boat.yaml
sed 's/sails: 1/sails: 2/' boat.yaml | kubectl apply --server-side --field-manager=thief -f -
sed 's/sails: 1/sails: 2/' boat.yaml | kubectl apply --server-side --field-manager=thief --force-conflicts -f -
kubectl get boat argo -o yaml --show-managed-fields
kubectl apply -f boat-wrong.yaml
# unordered: the errors come from a map
kubectl apply -f boat-wrong.yaml --validate=false
kubectl apply -f boat-heavy.yaml
kubectl get bt
kubectl get boats -o wide
kubectl get fleet -A
kubectl get boats --field-selector spec.flag=red
kubectl get boats --field-selector spec.sails=1
kubectl scale boat argo --replicas=4
kubectl patch boat argo --subresource=status --type=merge -p '{"status":{"port":"north","conditions":[{"type":"Ready","status":"True"}]}}'
kubectl patch boat argo -p '{"spec":{"sails":1}}'
kubectl wait --for=condition=Ready boat/argo --timeout=5s
kubectl wait --for=jsonpath='{.status.port}'=north boat/argo --timeout=5s
kubectl wait --for=condition=Sunk boat/argo --timeout=1s
kubectl describe boat argo
kubectl diff --server-side -f boat.yaml
kubectl delete boat argo
kubectl wait --for=delete boat/argo --timeout=10s
kubectl delete -f crd.yaml
kubectl get boats
kubectl apply --server-side -f web.yaml --field-manager=other
kubectl apply --server-side -f web.yaml
kubectl get configmap settings -o yaml --show-managed-fields

## Access
kubectl apply -f rbac.yaml
kubectl auth can-i get pods
kubectl auth can-i get pods --as=ann
kubectl auth can-i delete pods --as=ann
kubectl auth can-i get pods/log --as=ann -A
kubectl auth can-i get boats
# unordered: rules come from maps
kubectl auth can-i --list --as=ann
kubectl auth whoami --as=ann --as-group=crew
kubectl get pods --as=ann
kubectl delete configmap settings --as=ann
kubectl get pods --as=system:serviceaccount:shop:builder
kubectl create rolebinding more --clusterrole=admin --user=ann --as=ann
kubectl create clusterrolebinding clerk --clusterrole=system:controller:clusterrole-aggregation-controller --user=cid
kubectl create rolebinding clerk --clusterrole=edit --user=dan
kubectl create role sneaky --verb='*' --resource=secrets --as=dan
kubectl apply -f csr.yaml
kubectl get csr
kubectl certificate approve ann
kubectl certificate deny bob
kubectl get csr
kubectl describe csr ann | grep -v -e Age -e Subject
kubectl get csr bob -o yaml

## Nodes
kubectl apply -f node.yaml
kubectl get node pier -o yaml
kubectl label node pier disk=fast
kubectl taint node pier dedicated=db:NoSchedule
kubectl taint node pier dedicated=db:NoSchedule
kubectl taint node pier dedicated:NoSchedule-
kubectl taint node pier dedicated=db:Sometimes
kubectl patch node pier --subresource=status --type=merge -p '{"status":{"capacity":{"cpu":"4","memory":"8Gi","pods":"10"},"allocatable":{"cpu":"3500m","memory":"7Gi","pods":"10"},"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"ready"}],"addresses":[{"type":"InternalIP","address":"192.0.2.7"}],"nodeInfo":{"kubeletVersion":"v1.37.1","osImage":"Debian","kernelVersion":"6.1","containerRuntimeVersion":"containerd://2"}}}'
kubectl get nodes
kubectl get nodes -o wide
kubectl cordon pier
kubectl cordon pier
kubectl uncordon pier
kubectl apply -f pods.yaml
kubectl patch pod db-0 --subresource=status --type=merge -p '{"status":{"phase":"Running","podIP":"10.244.1.5","podIPs":[{"ip":"10.244.1.5"}],"conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"main","ready":true,"restartCount":2,"image":"registry.example/db:1","imageID":"x","state":{"running":{"startedAt":"2026-01-02T03:04:05Z"}}}]}}'
kubectl get pods -o wide
kubectl get pods --field-selector spec.nodeName=pier,status.phase=Running
kubectl get pod db-0 -o yaml
kubectl describe pod db-0
kubectl describe node pier
kubectl patch pod db-0 -p '{"spec":{"nodeName":"quay"}}' 2>&1 | head -1
kubectl apply -f pdb.yaml
kubectl drain pier
timeout 5 kubectl drain pier --force --pod-selector=app=db
kubectl patch pdb db --subresource=status --type=merge -p '{"status":{"observedGeneration":1,"currentHealthy":1,"desiredHealthy":1,"expectedPods":1,"disruptionsAllowed":0}}'
kubectl drain pier --force --pod-selector=app=db --timeout=3s
kubectl patch pdb db --subresource=status --type=merge -p '{"status":{"disruptionsAllowed":1,"currentHealthy":2}}'
kubectl drain pier --force --pod-selector=app=db --grace-period=0 --timeout=20s
kubectl get pdb db
kubectl drain pier --force --disable-eviction --grace-period=0 --timeout=20s
kubectl get pods
kubectl uncordon pier
kubectl delete node pier

## Delete
kubectl create -f web.yaml --dry-run=server
kubectl create configmap parent
kubectl create configmap parent2
kubectl create configmap parent3
for n in '' 2 3; do kubectl create configmap child$n -o json --dry-run=client | sed "s/\"metadata\": {/&\"ownerReferences\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"name\":\"parent$n\",\"uid\":\"$(kubectl get configmap parent$n -o jsonpath='{.metadata.uid}')\",\"blockOwnerDeletion\":true}],/" | kubectl create -f -; done
kubectl delete configmap parent --cascade=background
kubectl wait --for=delete configmap/child --timeout=30s
kubectl delete configmap parent2 --cascade=foreground --timeout=30s
kubectl get configmap child2
kubectl delete configmap parent3 --cascade=orphan
kubectl wait --for=jsonpath='{.metadata.name}'=child3 configmap/child3 --timeout=5s
until [ -z "$(kubectl get configmap child3 -o jsonpath='{.metadata.ownerReferences}')" ]; do sleep 0.2; done; kubectl get configmap child3
kubectl delete configmap nothing
kubectl delete configmap nothing --ignore-not-found
kubectl delete configmaps -l app=web
kubectl delete secrets --all
kubectl delete job once --dry-run=server
kubectl delete deployment tiny --now
kubectl delete deployments,services --all
kubectl delete pvc hold --wait=false
kubectl delete namespace shop --timeout=60s
kubectl get namespace shop
kubectl delete namespace kube-system
kubectl get all
